"""GEMM + all-reduce: the GEMM writes into symmetric memory, each rank sums one slice and pushes it to all ranks.

Two shots: what crosses the link is one slice from every peer and the finished slice to every peer, not whole matrices.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <ATen/cuda/CUDAContext.h>

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T x[N]; };

// elements [begin, end) in packs: the sum of all partials, written to the result region of every peer
template <typename T, int N>
__global__ void sum_and_push(const int64_t* __restrict__ peers, int world, int64_t result_bytes, int64_t begin, int64_t end) {
  using Acc = at::opmath_type<T>;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = begin + blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < end; i += stride) {
    Acc total[N] = {};
    for (int r = 0; r < world; ++r) {
      const Pack<T, N> p = reinterpret_cast<const Pack<T, N>*>(peers[r])[i];
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += static_cast<Acc>(p.x[k]);
    }
    Pack<T, N> sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.x[k] = static_cast<T>(total[k]);
    for (int r = 0; r < world; ++r) reinterpret_cast<Pack<T, N>*>(peers[r] + result_bytes)[i] = sum;
  }
}

template <typename T, int N>
void launch(const torch::Tensor& peers, int64_t rank, int64_t result_bytes, int64_t n) {
  const int64_t packs = n / N, world = peers.numel();
  const int64_t each = (packs + world - 1) / world;
  const int64_t begin = std::min(packs, rank * each), end = std::min(packs, begin + each);
  if (begin == end) return;
  sum_and_push<T, N><<<(int)std::min<int64_t>((end - begin + 255) / 256, 1056), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), (int)world, result_bytes, begin, end);
}

void reduce_slices(torch::Tensor peers, torch::Tensor partial, int64_t rank, int64_t result_bytes) {
  const int64_t n = partial.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, partial.scalar_type(), "reduce_slices", [&] {
    constexpr int wide = 16 / sizeof(scalar_t);
    if (n % wide == 0) launch<scalar_t, wide>(peers, rank, result_bytes, n);
    else launch<scalar_t, 1>(peers, rank, result_bytes, n);
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("reduce_slices", &reduce_slices); }
"""

_state = {"half": 0}


def _workspace(nbytes, device):
    """First half: this rank's partial product. Second half: the result, written by all ranks."""
    if "ext" not in _state:
        _state["ext"] = compile_cuda_extension("gemm_allreduce_two_shot", SOURCE)
    if _state["half"] < nbytes:
        _state["half"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(2 * _state["half"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)
    return _state["buffer"], _state["handle"], _state["half"]


def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    M, N = A_local.shape[0], B_local.shape[1]
    nbytes = M * N * A_local.element_size()
    buffer, handle, half = _workspace(max(nbytes, 1), A_local.device)
    partial = buffer[:nbytes].view(A_local.dtype).view(M, N)
    result = buffer[half : half + nbytes].view(A_local.dtype).view(M, N)
    torch.matmul(A_local, B_local, out=partial)
    handle.barrier(channel=0)
    _state["ext"].reduce_slices(_state["peers"], partial, dist.get_rank(), half)
    handle.barrier(channel=1)
    return result.clone()
