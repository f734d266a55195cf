"""All-gather: every rank pushes its shard into the result buffers of all ranks; the result is returned where it lies.

The result is a view of the symmetric buffer and stays valid until the next call. The first barrier of a call says that every rank
has consumed the last result, the second that all shards have arrived.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAException.h>

template <typename Unit>
__global__ void push(const Unit* __restrict__ shard, const int64_t* __restrict__ peers, int rank, int64_t units) {
  Unit* slot = reinterpret_cast<Unit*>(peers[blockIdx.y]) + rank * units;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) slot[i] = shard[i];
}

template <typename Unit>
void launch(const torch::Tensor& shard, const torch::Tensor& peers, int64_t rank) {
  const int64_t units = shard.nbytes() / sizeof(Unit);
  const int blocks = (int)std::min<int64_t>((units + 255) / 256, 512);
  push<Unit><<<dim3(blocks, (unsigned)peers.numel()), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const Unit*>(shard.data_ptr()), peers.data_ptr<int64_t>(), (int)rank, units);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void push_shard(torch::Tensor shard, torch::Tensor peers, int64_t rank) {
  const uint64_t nbytes = shard.nbytes();
  if (nbytes == 0) return;
  const uint64_t aligned = nbytes | reinterpret_cast<uint64_t>(shard.data_ptr());
  if (aligned % 16 == 0) launch<uint4>(shard, peers, rank);
  else if (aligned % 4 == 0) launch<uint32_t>(shard, peers, rank);
  else if (aligned % 2 == 0) launch<uint16_t>(shard, peers, rank);
  else launch<uint8_t>(shard, peers, rank);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("push_shard", &push_shard); }
"""

_ext = None
_buffer = None


def _extension():
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("allgather_push", SOURCE, extra_cuda_cflags=["-O3"])
    return _ext


def _result_buffer(nbytes, device):
    """(buffer, handle, peer pointers) of at least nbytes; every rank asks for the same size, so all grow together."""
    global _buffer
    if _buffer is None or _buffer[0].numel() < nbytes:
        capacity = max(1 << 20, 1 << (nbytes - 1).bit_length())
        buffer = symm_mem.empty(capacity, dtype=torch.uint8, device=device)
        handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
        _buffer = (buffer, handle, torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device))
    return _buffer


def solution(tensor: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    shard = tensor.contiguous()
    nbytes = world_size * shard.numel() * shard.element_size()
    ext = _extension()
    buffer, handle, peers = _result_buffer(max(nbytes, 1), tensor.device)
    handle.barrier(channel=0)
    ext.push_shard(shard, peers, dist.get_rank())
    handle.barrier(channel=1)
    return buffer[:nbytes].view(tensor.dtype).view(world_size, *tensor.shape)
