"""All-reduce in one shot: every rank stages its tensor, then one kernel reads all peers and sums in float."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>
#include <algorithm>

// out[i] = sum over ranks of buffers[rank][i], accumulated in float (double for double) and rounded once. The order of the sum
// is that of the ranks, so all ranks get the same bits. A thread takes 16 bytes at a time; the last few elements go one by one.
template <typename T>
__global__ void sum_peers(const uint64_t* __restrict__ buffers, int world, T* __restrict__ out, int64_t count) {
  using Accumulator = at::opmath_type<T>;
  constexpr int kWidth = 16 / sizeof(T);
  struct alignas(16) Vec { T value[kWidth]; };
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t vectors = count / kWidth;
  for (int64_t i = first; i < vectors; i += step) {
    Accumulator total[kWidth] = {};
    for (int r = 0; r < world; ++r) {
      const Vec part = reinterpret_cast<const Vec*>(buffers[r])[i];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) total[k] += static_cast<Accumulator>(part.value[k]);
    }
    Vec result;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) result.value[k] = static_cast<T>(total[k]);
    reinterpret_cast<Vec*>(out)[i] = result;
  }
  for (int64_t i = vectors * kWidth + first; i < count; i += step) {
    Accumulator total = 0;
    for (int r = 0; r < world; ++r) total += static_cast<Accumulator>(reinterpret_cast<const T*>(buffers[r])[i]);
    out[i] = static_cast<T>(total);
  }
}

void sum_into(int64_t buffers, int64_t world, torch::Tensor out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const int threads = 256;
  const int64_t vectors = count * out.element_size() / 16 + 1;
  const int blocks = int(std::min<int64_t>((vectors + threads - 1) / threads, 1056));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "sum_into", [&] {
    sum_peers<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const uint64_t*>(buffers), int(world), out.data_ptr<scalar_t>(), count);
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum_into", &sum_into); }
"""

_state = {"bytes": 0, "call": 0}


def _slot(nbytes, device):
    """This call's symmetric-memory handle: two buffers take turns, so that one barrier per call is enough.

    A buffer is written again two calls later. Before that, every rank's stream has passed the barrier of the call between, which
    a peer's stream reaches only after it has finished reading.
    """
    if "extension" not in _state:
        _state["extension"] = compile_cuda_extension("allreduce_sum", CUDA_SRC)
    if nbytes > _state["bytes"]:  # sizes are equal on all ranks, so all ranks take this branch together
        torch.cuda.synchronize()  # a peer may still be reading the old buffers
        dist.barrier()
        _state["bytes"] = max(nbytes, 2 * _state["bytes"])
        _state["buffers"] = [symm_mem.empty(_state["bytes"], dtype=torch.uint8, device=device) for _ in range(2)]
        _state["handles"] = [symm_mem.rendezvous(buffer, dist.group.WORLD) for buffer in _state["buffers"]]
    _state["call"] += 1
    return _state["handles"][_state["call"] % 2]


def solution(tensor: torch.Tensor) -> torch.Tensor:
    handle = _slot(tensor.numel() * tensor.element_size(), tensor.device)
    handle.get_buffer(handle.rank, tensor.shape, tensor.dtype).copy_(tensor)
    handle.barrier(channel=0)
    total = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    _state["extension"].sum_into(handle.buffer_ptrs_dev, handle.world_size, total)
    return total
