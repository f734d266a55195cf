"""Reduce-scatter: every rank stages its addend and sums its own row block over all peers.

Calls alternate between two halves of the staging buffer, so that one barrier per call is enough: a rank that writes a half again
has passed the barrier of the call in between, which every peer entered after it had read that half.
"""

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
__global__ void sum_block(const int64_t* __restrict__ peers, int world, int64_t offset_bytes, T* __restrict__ out,
                          int64_t packs) {
  using Acc = at::opmath_type<T>;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < packs; i += stride) {
    Acc total[N] = {};
    for (int r = 0; r < world; ++r) {
      const Pack<T, N> p = reinterpret_cast<const Pack<T, N>*>(peers[r] + offset_bytes)[i];
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += static_cast<Acc>(p.x[k]);
    }
    Pack<T, N> sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.x[k] = static_cast<T>(total[k]);
    reinterpret_cast<Pack<T, N>*>(out)[i] = sum;
  }
}

template <typename T, int N>
void launch(const torch::Tensor& peers, int64_t offset_bytes, torch::Tensor& out) {
  const int64_t packs = out.numel() / N;
  sum_block<T, N><<<(int)std::min<int64_t>((packs + 255) / 256, 1056), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), (int)peers.numel(), offset_bytes, out.data_ptr<T>(), packs);
}

void sum_own_block(torch::Tensor peers, int64_t offset_bytes, torch::Tensor out) {
  if (out.numel() == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "sum_own_block", [&] {
    constexpr int wide = 16 / sizeof(scalar_t);
    if (out.numel() % wide == 0 && offset_bytes % 16 == 0)
      launch<scalar_t, wide>(peers, offset_bytes, out);
    else
      launch<scalar_t, 1>(peers, offset_bytes, out);
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum_own_block", &sum_own_block); }
"""

_state = {"half": 0, "calls": 0}


def _workspace(nbytes, device):
    if "ext" not in _state:
        _state["ext"] = compile_cuda_extension("reducescatter_pull", SOURCE)
    if _state["half"] < nbytes:
        _state["half"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(2 * _state["half"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    out = torch.empty((tensor.shape[0] // world_size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    nbytes = tensor.numel() * tensor.element_size()
    _workspace(max(nbytes, 1), tensor.device)
    base = (_state["calls"] % 2) * _state["half"]
    _state["calls"] += 1
    _state["buffer"][base : base + nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
    _state["handle"].barrier(channel=0)
    _state["ext"].sum_own_block(_state["peers"], base + rank * out.numel() * out.element_size(), out)
    return out
