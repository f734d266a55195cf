"""Ulysses exchange before attention: every rank pushes each head shard to its place in the owner's full sequence.

Nothing is packed or unpacked. The result is a view of the symmetric buffer and stays valid until the next call; the first barrier
of a call says that all ranks have consumed theirs.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// Input (A, X1, B, X2, C) in units. With seq_first the first dimension is the sequence and the second the heads.
template <typename Unit>
__global__ void push(const Unit* __restrict__ x, const int64_t* __restrict__ peers, int world, int rank, bool seq_first,
                     int64_t X1, int64_t B, int64_t X2, int64_t C, int64_t total) {
  const int64_t Y1 = seq_first ? X1 * world : X1 / world, Y2 = seq_first ? X2 / world : X2 * world;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < total; i += stride) {
    int64_t rest = i;
    const int64_t c = rest % C; rest /= C;
    const int64_t x2 = rest % X2; rest /= X2;
    const int64_t b = rest % B; rest /= B;
    const int64_t x1 = rest % X1, a = rest / X1;
    const int64_t owner = seq_first ? x2 / Y2 : x1 / Y1;
    const int64_t y1 = seq_first ? x1 + rank * X1 : x1 % Y1, y2 = seq_first ? x2 % Y2 : x2 + rank * X2;
    reinterpret_cast<Unit*>(peers[owner])[(((a * Y1 + y1) * B + b) * Y2 + y2) * C + c] = x[i];
  }
}

template <typename Unit>
void launch(const torch::Tensor& x, const torch::Tensor& peers, int64_t rank, bool seq_first, const std::vector<int64_t>& middle,
            int64_t inner_bytes) {
  const int64_t total = x.nbytes() / sizeof(Unit);
  push<Unit><<<(int)std::min<int64_t>((total + 255) / 256, 2112), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const Unit*>(x.data_ptr()), peers.data_ptr<int64_t>(), (int)peers.numel(), (int)rank, seq_first, middle[0],
      middle[1], middle[2], inner_bytes / (int64_t)sizeof(Unit), total);
}

void push_heads(torch::Tensor x, torch::Tensor peers, int64_t rank, bool seq_first, std::vector<int64_t> middle,
                int64_t inner_bytes) {
  if (x.numel() == 0) return;
  const int64_t aligned = inner_bytes | (int64_t)x.data_ptr();
  if (aligned % 16 == 0) launch<uint4>(x, peers, rank, seq_first, middle, inner_bytes);
  else if (aligned % 4 == 0) launch<uint32_t>(x, peers, rank, seq_first, middle, inner_bytes);
  else launch<uint16_t>(x, peers, rank, seq_first, middle, inner_bytes);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("push_heads", &push_heads); }
"""

_ext = None
_results = {}


def _result_of(group, nbytes, device):
    found = _results.get(group.group_name)
    if found is None or found[0].numel() < nbytes:
        buffer = symm_mem.empty(max(1 << 20, 1 << (nbytes - 1).bit_length()), dtype=torch.uint8, device=device)
        handle = symm_mem.rendezvous(buffer, group)
        found = _results[group.group_name] = (buffer, handle, torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device))
    return found


def solution(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("ulysses_push_heads", SOURCE)
    group = group if group is not None else dist.group.WORLD
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    seq, heads = seq_dim % x.dim(), head_dim % x.dim()
    if x.shape[heads] % world_size:
        raise ValueError(f"{x.shape[heads]} heads cannot be shared equally by {world_size} ranks")

    shape = list(x.shape)
    shape[seq] *= world_size
    shape[heads] //= world_size
    first, second = min(seq, heads), max(seq, heads)
    middle = [x.shape[first], math.prod(x.shape[first + 1 : second]), x.shape[second]]
    inner_bytes = math.prod(x.shape[second + 1 :]) * x.element_size()

    nbytes = x.numel() * x.element_size()
    buffer, handle, peers = _result_of(group, max(1, nbytes), x.device)
    handle.barrier(channel=0)
    _ext.push_heads(x.contiguous(), peers, rank, seq == first, middle, inner_bytes)
    handle.barrier(channel=1)
    full = buffer[:nbytes].view(x.dtype).view(shape)
    if unpadded_dim_size and unpadded_dim_size % world_size:
        full = full.narrow(seq, 0, unpadded_dim_size)
    return full
