"""Reduce to one rank: every rank stages its addend; the destination reads all of them and adds in fp32, in rank order."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAStream.h>

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T x[N]; };

template <typename T, int N>
__global__ void sum_peers(const int64_t* __restrict__ peers, int world, T* __restrict__ out, int64_t packs) {
  using Acc = at::opmath_type<T>;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < packs; i += stride) {
    Acc total[N] = {};
    for (int r = 0; r < world; ++r) {
      const Pack<T, N> p = reinterpret_cast<const Pack<T, N>*>(peers[r])[i];
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += static_cast<Acc>(p.x[k]);
    }
    Pack<T, N> sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.x[k] = static_cast<T>(total[k]);
    reinterpret_cast<Pack<T, N>*>(out)[i] = sum;
  }
}

void sum_into(torch::Tensor peers, torch::Tensor out) {
  const int64_t n = out.numel();
  if (n == 0) return;
  auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "sum_into", [&] {
    constexpr int wide = 16 / sizeof(scalar_t);
    const int world = (int)peers.numel();
    scalar_t* to = out.data_ptr<scalar_t>();
    if (n % wide == 0)
      sum_peers<scalar_t, wide><<<(int)std::min<int64_t>((n / wide + 255) / 256, 1056), 256, 0, stream>>>(
          peers.data_ptr<int64_t>(), world, to, n / wide);
    else
      sum_peers<scalar_t, 1><<<(int)std::min<int64_t>((n + 255) / 256, 1056), 256, 0, stream>>>(
          peers.data_ptr<int64_t>(), world, to, n);
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum_into", &sum_into); }
"""

_state = {}


def _workspace(nbytes, device):
    if "ext" not in _state:
        _state["ext"] = compile_cuda_extension("reduce_pull", SOURCE)
    if _state.get("capacity", 0) < nbytes:
        _state["capacity"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(_state["capacity"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)
    return _state["buffer"], _state["handle"]


def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    nbytes = tensor.numel() * tensor.element_size()
    buffer, handle = _workspace(max(nbytes, 1), tensor.device)
    buffer[:nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
    handle.barrier(channel=0)
    if dist.get_rank() == dst:
        out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        _state["ext"].sum_into(_state["peers"], out)
    else:
        out = tensor.clone()
    handle.barrier(channel=1)
    return out
