"""Broadcast: rank src stages its tensor in symmetric memory, the others read it with one kernel."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>
#include <algorithm>

// Copies bytes that lie in a peer's memory: 16 at a time, the last few one by one. Both pointers are multiples of 16.
__global__ void read_peer(const char* __restrict__ peer, char* __restrict__ out, int64_t bytes) {
  const int64_t vectors = bytes / 16;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < vectors; i += step)
    reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(peer)[i];
  for (int64_t i = 16 * vectors + first; i < bytes; i += step) out[i] = peer[i];
}

void read_into(int64_t address, torch::Tensor out) {
  const int64_t bytes = out.numel() * out.element_size();
  if (bytes == 0) return;
  const int threads = 512;
  const int blocks = int(std::min<int64_t>((bytes / 16 + threads) / threads, 264));  // at least one, at most two per multiprocessor
  read_peer<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const char*>(address), static_cast<char*>(out.data_ptr()), bytes);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("read_into", &read_into); }
"""

_state = {"bytes": 0, "call": 0}


def _slot(nbytes, device):
    """This call's symmetric-memory handle: two buffers take turns, so that one barrier per call is enough.

    A buffer is written again two calls later. Before that, every rank's stream has passed the barrier of the call between, which
    a peer's stream reaches only after it has finished reading.
    """
    if "extension" not in _state:
        _state["extension"] = compile_cuda_extension("broadcast_read", CUDA_SRC)
    if nbytes > _state["bytes"]:  # sizes are equal on all ranks, so all ranks take this branch together
        torch.cuda.synchronize()  # a peer may still be reading the old buffers
        dist.barrier()
        _state["bytes"] = max(nbytes, 2 * _state["bytes"])
        _state["buffers"] = [symm_mem.empty(_state["bytes"], dtype=torch.uint8, device=device) for _ in range(2)]
        _state["handles"] = [symm_mem.rendezvous(buffer, dist.group.WORLD) for buffer in _state["buffers"]]
    _state["call"] += 1
    return _state["handles"][_state["call"] % 2]


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    handle = _slot(tensor.numel() * tensor.element_size(), tensor.device)
    if handle.rank == src:
        handle.get_buffer(src, tensor.shape, tensor.dtype).copy_(tensor)
    handle.barrier(channel=0)
    if handle.rank == src:
        return tensor.clone()
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    _state["extension"].read_into(handle.buffer_ptrs[src], out)
    return out
