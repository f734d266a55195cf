"""Gather: every rank stages its tensor; the destination reads all of them in one launch, one row of blocks per peer."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

template <typename Unit>
__global__ void pull_all(const int64_t* __restrict__ peers, Unit* __restrict__ out, int64_t units) {
  const Unit* from = reinterpret_cast<const Unit*>(peers[blockIdx.y]);
  Unit* to = out + blockIdx.y * units;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) to[i] = from[i];
}

template <typename Unit>
void launch(const torch::Tensor& peers, torch::Tensor& out) {
  const int64_t units = out.nbytes() / sizeof(Unit) / peers.numel();
  const dim3 grid((unsigned)std::min<int64_t>((units + 255) / 256, 512), (unsigned)peers.numel());
  pull_all<Unit><<<grid, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), reinterpret_cast<Unit*>(out.data_ptr()), units);
}

void gather_into(torch::Tensor peers, torch::Tensor out) {
  const uint64_t each = out.nbytes() / peers.numel();
  if (each == 0) return;
  if (each % 16 == 0) launch<uint4>(peers, out);
  else if (each % 4 == 0) launch<uint32_t>(peers, out);
  else if (each % 2 == 0) launch<uint16_t>(peers, out);
  else launch<uint8_t>(peers, out);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gather_into", &gather_into); }
"""


class _Workspace:
    """Symmetric staging memory that grows when a call needs more."""

    def __init__(self):
        self.ext = compile_cuda_extension("gather_pull", SOURCE)
        self.capacity = 0

    def reserve(self, nbytes, device):
        if nbytes <= self.capacity:
            return
        self.capacity = max(1 << 20, 2 * nbytes)
        self.buffer = symm_mem.empty(self.capacity, dtype=torch.uint8, device=device)
        self.handle = symm_mem.rendezvous(self.buffer, dist.group.WORLD)
        self.peers = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=device)


_workspace = None


def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    global _workspace
    if _workspace is None:
        _workspace = _Workspace()
    work = _workspace
    nbytes = tensor.numel() * tensor.element_size()
    work.reserve(max(nbytes, 1), tensor.device)
    work.buffer[:nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
    work.handle.barrier(channel=0)
    out = tensor
    if dist.get_rank() == dst:
        out = torch.empty((dist.get_world_size(), *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        work.ext.gather_into(work.peers, out)
    work.handle.barrier(channel=1)
    return out
