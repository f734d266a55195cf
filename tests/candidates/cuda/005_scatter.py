"""Scatter: the source stages all chunks in symmetric memory, every rank reads its own from there."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

template <typename Unit>
__global__ void copy_units(const Unit* __restrict__ from, Unit* __restrict__ to, int64_t units) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) to[i] = from[i];
}

template <typename Unit>
void launch(int64_t from, int64_t to, int64_t nbytes) {
  const int64_t units = nbytes / (int64_t)sizeof(Unit);
  copy_units<Unit><<<(int)std::min<int64_t>((units + 255) / 256, 1056), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const Unit*>(from), reinterpret_cast<Unit*>(to), units);
}

void copy_bytes(int64_t from, int64_t to, int64_t nbytes) {
  if (nbytes == 0) return;
  const int64_t aligned = from | to | nbytes;
  if (aligned % 16 == 0) launch<uint4>(from, to, nbytes);
  else if (aligned % 4 == 0) launch<uint32_t>(from, to, nbytes);
  else if (aligned % 2 == 0) launch<uint16_t>(from, to, nbytes);
  else launch<uint8_t>(from, to, nbytes);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("copy_bytes", &copy_bytes); }
"""

_ext = None
_staging = None


def _setup(nbytes, device):
    global _ext, _staging
    if _ext is None:
        _ext = compile_cuda_extension("scatter_pull", SOURCE)
    if _staging is None or _staging[0].numel() < nbytes:
        buffer = symm_mem.empty(max(1 << 20, 1 << (nbytes - 1).bit_length()), dtype=torch.uint8, device=device)
        _staging = (buffer, symm_mem.rendezvous(buffer, dist.group.WORLD))
    return _staging


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if rank == src:
        shape = (tensor.shape[0] // world_size, *tensor.shape[1:])
        shape = shape[1:] if shape[0] == 1 else shape
    else:
        shape = tensor.shape
    out = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    nbytes = out.numel() * out.element_size()
    buffer, handle = _setup(max(world_size * nbytes, 1), tensor.device)
    if rank == src:
        buffer[: world_size * nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
    handle.barrier(channel=0)
    _ext.copy_bytes(handle.buffer_ptrs[src] + rank * nbytes, out.data_ptr(), nbytes)
    handle.barrier(channel=1)
    return out
