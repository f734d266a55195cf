"""All-to-all: every rank stages its slices and reads the one addressed to it from each peer (built with load_inline)."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = "void exchange(torch::Tensor peers, int64_t base, int64_t rank, torch::Tensor out);"

CUDA_SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

template <typename Unit>
__global__ void pull_slices(const int64_t* __restrict__ peers, int64_t offset_bytes, Unit* __restrict__ out, int64_t units) {
  const Unit* from = reinterpret_cast<const Unit*>(peers[blockIdx.y] + offset_bytes);
  Unit* to = out + blockIdx.y * units;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) to[i] = from[i];
}

template <typename Unit>
void launch(const torch::Tensor& peers, int64_t offset_bytes, torch::Tensor& out, int64_t slice_bytes) {
  const int64_t units = slice_bytes / (int64_t)sizeof(Unit);
  const dim3 grid((unsigned)std::min<int64_t>((units + 255) / 256, 512), (unsigned)peers.numel());
  pull_slices<Unit><<<grid, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), offset_bytes, reinterpret_cast<Unit*>(out.data_ptr()), units);
}

void exchange(torch::Tensor peers, int64_t base, int64_t rank, torch::Tensor out) {
  const int64_t slice_bytes = (int64_t)out.nbytes() / peers.numel();
  if (slice_bytes == 0) return;
  const int64_t offset = base + rank * slice_bytes;
  if (slice_bytes % 16 == 0) launch<uint4>(peers, offset, out, slice_bytes);
  else if (slice_bytes % 4 == 0) launch<uint32_t>(peers, offset, out, slice_bytes);
  else if (slice_bytes % 2 == 0) launch<uint16_t>(peers, offset, out, slice_bytes);
  else launch<uint8_t>(peers, offset, out, slice_bytes);
}
"""

_module = None
_buffers = {}


def _extension():
    global _module
    if _module is None:
        _module = load_inline(
            name="alltoall_pull",
            cpp_sources=CPP_SOURCE,
            cuda_sources=CUDA_SOURCE,
            functions=["exchange"],
            extra_cuda_cflags=["-O3"],
            verbose=False,
        )
    return _module


def _staging(nbytes, device):
    """Two halves, used in turn: one barrier per call then separates reads from the writes two calls later."""
    found = _buffers.get("staging")
    if found is None or found["half"] < nbytes:
        half = max(1 << 20, 1 << (nbytes - 1).bit_length())
        buffer = symm_mem.empty(2 * half, dtype=torch.uint8, device=device)
        handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
        peers = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device)
        found = _buffers["staging"] = {"half": half, "buffer": buffer, "handle": handle, "peers": peers, "turn": 0}
    return found


def solution(tensor: torch.Tensor) -> torch.Tensor:
    nbytes = tensor.numel() * tensor.element_size()
    ext = _extension()
    staging = _staging(max(nbytes, 1), tensor.device)
    base = staging["turn"] * staging["half"]
    staging["turn"] ^= 1
    staging["buffer"][base : base + nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
    staging["handle"].barrier(channel=0)
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    ext.exchange(staging["peers"], base, dist.get_rank(), out)
    return out
