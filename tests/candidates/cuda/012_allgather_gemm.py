"""All-gather + GEMM: one kernel reads every peer's columns and interleaves them into A, then one local GEMM."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

// out (rows, world, units): row m of the gathered matrix is the peers' rows m, one after the other
template <typename Unit>
__global__ void gather_columns(const int64_t* __restrict__ peers, int world, int64_t units, int64_t total,
                               Unit* __restrict__ out) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total; i += stride) {
    const int64_t unit = i % units, place = i / units;
    const int64_t row = place / world;
    out[i] = reinterpret_cast<const Unit*>(peers[place % world])[row * units + unit];
  }
}

template <typename Unit>
void launch(const torch::Tensor& peers, torch::Tensor& out, int64_t row_bytes) {
  const int64_t total = out.nbytes() / sizeof(Unit);
  gather_columns<Unit><<<(int)std::min<int64_t>((total + 255) / 256, 2112), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), (int)peers.numel(), row_bytes / (int64_t)sizeof(Unit), total,
      reinterpret_cast<Unit*>(out.data_ptr()));
}

void gather(torch::Tensor peers, torch::Tensor out) {
  if (out.numel() == 0) return;
  const int64_t row_bytes = out.size(1) * out.element_size() / peers.numel();
  if (row_bytes % 16 == 0) launch<uint4>(peers, out, row_bytes);
  else if (row_bytes % 4 == 0) launch<uint32_t>(peers, out, row_bytes);
  else if (row_bytes % 2 == 0) launch<uint16_t>(peers, out, row_bytes);
  else launch<uint8_t>(peers, out, row_bytes);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gather", &gather); }
"""

_state = {}


def _workspace(nbytes, device):
    if "ext" not in _state:
        if dist.get_rank() == 0:
            compile_cuda_extension("allgather_columns", SOURCE, ["-O3", "--use_fast_math"])
        dist.barrier()
        _state["ext"] = compile_cuda_extension("allgather_columns", SOURCE, ["-O3", "--use_fast_math"])
    if _state.get("capacity", 0) < nbytes:
        _state["capacity"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(_state["capacity"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)
    return _state["buffer"], _state["handle"], _state["peers"]


def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    rows, columns = A_local.shape
    nbytes = A_local.numel() * A_local.element_size()
    buffer, handle, peers = _workspace(max(nbytes, 1), A_local.device)
    buffer[:nbytes].view(A_local.dtype).view(rows, columns).copy_(A_local)
    handle.barrier(channel=0)
    A = torch.empty(rows, columns * dist.get_world_size(), dtype=A_local.dtype, device=A_local.device)
    _state["ext"].gather(peers, A)
    handle.barrier(channel=1)
    return torch.matmul(A, B)
