"""All-to-all: every rank stages its tensor, then one kernel gathers this rank's slice of each peer's."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>
#include <algorithm>

// out[p] = slice `rank` of peer p's buffer. One row of blocks per peer; every rank begins with itself and goes on in a ring, so
// that no peer is read by all at once. Vec is the widest type that the slices' size allows.
template <typename Vec>
__global__ void gather_slices(const uint64_t* __restrict__ buffers, char* __restrict__ out, int64_t bytes, int rank) {
  const int peer = (rank + blockIdx.y) % gridDim.y;
  const Vec* from = reinterpret_cast<const Vec*>(buffers[peer] + rank * bytes);
  Vec* to = reinterpret_cast<Vec*>(out + peer * bytes);
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes / int64_t(sizeof(Vec)); i += step) to[i] = from[i];
}

template <typename Vec>
void launch(const uint64_t* buffers, torch::Tensor out, int64_t bytes, int rank) {
  const int threads = 512;
  const int64_t blocks = std::min<int64_t>((bytes / int64_t(sizeof(Vec)) + threads - 1) / threads, 64);
  gather_slices<Vec><<<dim3(unsigned(blocks), unsigned(out.size(0))), threads, 0, at::cuda::getCurrentCUDAStream()>>>(
      buffers, static_cast<char*>(out.data_ptr()), bytes, rank);
}

void gather(int64_t buffers, torch::Tensor out, int64_t rank) {
  const int64_t bytes = out.numel() * out.element_size() / out.size(0);
  if (bytes == 0) return;
  const auto* pointers = reinterpret_cast<const uint64_t*>(buffers);
  if (bytes % 16 == 0) launch<uint4>(pointers, out, bytes, int(rank));
  else if (bytes % 2 == 0) launch<uint16_t>(pointers, out, bytes, int(rank));
  else launch<uint8_t>(pointers, out, bytes, int(rank));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gather", &gather); }
"""

_state = {"bytes": 0, "call": 0}


def _slot(nbytes, device):
    """This call's symmetric-memory handle: two buffers take turns, so that one barrier per call is enough.

    A buffer is written again two calls later. Before that, every rank's stream has passed the barrier of the call between, which
    a peer's stream reaches only after it has finished reading.
    """
    if "extension" not in _state:
        _state["extension"] = compile_cuda_extension("alltoall_gather", CUDA_SRC)
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
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    _state["extension"].gather(handle.buffer_ptrs_dev, received, handle.rank)
    return received
