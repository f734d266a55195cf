"""Broadcast: the source stages its tensor in symmetric memory, the other ranks read it from there."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

template <typename Unit>
__global__ void pull_kernel(const Unit* __restrict__ source, Unit* __restrict__ out, int64_t units) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  // four independent loads in flight hide the latency of the link
  for (; i + 3 * stride < units; i += 4 * stride) {
    const Unit a = source[i], b = source[i + stride], c = source[i + 2 * stride], d = source[i + 3 * stride];
    out[i] = a; out[i + stride] = b; out[i + 2 * stride] = c; out[i + 3 * stride] = d;
  }
  for (; i < units; i += stride) out[i] = source[i];
}

template <typename Unit>
void launch(int64_t address, torch::Tensor& out) {
  const int64_t units = out.nbytes() / sizeof(Unit);
  const int blocks = (int)std::min<int64_t>((units + 1023) / 1024, 1056);
  pull_kernel<Unit><<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const Unit*>(address), reinterpret_cast<Unit*>(out.data_ptr()), units);
}

void pull(int64_t address, torch::Tensor out) {
  const uint64_t nbytes = out.nbytes();
  if (nbytes == 0) return;
  if (nbytes % 16 == 0) launch<uint4>(address, out);
  else if (nbytes % 4 == 0) launch<uint32_t>(address, out);
  else if (nbytes % 2 == 0) launch<uint16_t>(address, out);
  else launch<uint8_t>(address, out);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("pull", &pull, "copy bytes from a peer's address"); }
"""

_cache = {}


def _setup(nbytes, device):
    if "ext" not in _cache:
        if dist.get_rank() == 0:
            _cache["ext"] = compile_cuda_extension("broadcast_pull", CUDA_SRC)
        dist.barrier()
        if "ext" not in _cache:
            _cache["ext"] = compile_cuda_extension("broadcast_pull", CUDA_SRC)
    if _cache.get("capacity", 0) < nbytes:
        _cache["capacity"] = max(1 << 20, 2 * nbytes)
        _cache["buffer"] = symm_mem.empty(_cache["capacity"], dtype=torch.uint8, device=device)
        _cache["handle"] = symm_mem.rendezvous(_cache["buffer"], dist.group.WORLD)
    return _cache["ext"], _cache["buffer"], _cache["handle"]


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    nbytes = tensor.numel() * tensor.element_size()
    ext, buffer, handle = _setup(max(nbytes, 1), tensor.device)
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    mine = dist.get_rank() == src
    if mine:
        buffer[:nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
        out.copy_(tensor)
    handle.barrier(channel=0)
    if not mine:
        ext.pull(handle.buffer_ptrs[src], out)
    handle.barrier(channel=1)
    return out
