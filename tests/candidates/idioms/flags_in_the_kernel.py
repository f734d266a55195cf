# problem: 2
# The kernel itself synchronises with its peers, by flags in the signal pads: one launch, no barrier from the host.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ void raise_flag(unsigned* flag) {
  unsigned old;
  do {
    asm volatile("atom.release.sys.global.cas.b32 %0, [%1], 0, 1;" : "=r"(old) : "l"(flag) : "memory");
  } while (old != 0);
}
__device__ void take_flag(unsigned* flag) {
  unsigned old;
  do {
    asm volatile("atom.acquire.sys.global.cas.b32 %0, [%1], 1, 0;" : "=r"(old) : "l"(flag) : "memory");
  } while (old != 1);
}
// Every block meets the same block of every other rank: pads[r] + block * world + source.
__device__ void meet(const uint64_t* pads, int rank, int world) {
  __syncthreads();
  if ((int)threadIdx.x < world && (int)threadIdx.x != rank) {
    raise_flag(reinterpret_cast<unsigned*>(pads[threadIdx.x]) + blockIdx.x * world + rank);
    take_flag(reinterpret_cast<unsigned*>(pads[rank]) + blockIdx.x * world + threadIdx.x);
  }
  __syncthreads();
}

__global__ void gather(const uint64_t* buffers, const uint64_t* pads, const char* mine, char* out, int64_t nbytes, int rank, int world) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x, first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  char* staged = reinterpret_cast<char*>(buffers[rank]);
  for (int64_t i = first; i < nbytes; i += step) staged[i] = mine[i];
  __threadfence_system();
  meet(pads, rank, world);
  for (int r = 0; r < world; ++r) {
    const volatile char* theirs = reinterpret_cast<const volatile char*>(buffers[r]);
    for (int64_t i = first; i < nbytes; i += step) out[r * nbytes + i] = theirs[i];
  }
  meet(pads, rank, world);
}

void gather_peers(int64_t buffers, int64_t pads, torch::Tensor mine, torch::Tensor out, int64_t rank, int64_t world) {
  gather<<<8, 512, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const uint64_t*>(buffers), reinterpret_cast<const uint64_t*>(pads), reinterpret_cast<const char*>(mine.data_ptr()),
      reinterpret_cast<char*>(out.data_ptr()), (int64_t)mine.nbytes(), (int)rank, (int)world);
}
"""
CPP = "void gather_peers(int64_t buffers, int64_t pads, torch::Tensor mine, torch::Tensor out, int64_t rank, int64_t world);"

_built = None
_rooms = {}


def _module():
    global _built
    if _built is None:
        _built = load_inline(
            name="gather_with_flags", cpp_sources=CPP, cuda_sources=CUDA, functions=["gather_peers"], extra_cuda_cflags=["-O3"], verbose=False
        )
    return _built


def solution(tensor):
    module = _module()
    tensor = tensor.contiguous()
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes not in _rooms:
        room = symm_mem.empty(max(16, nbytes), dtype=torch.uint8, device=tensor.device)
        _rooms[nbytes] = symm_mem.rendezvous(room, dist.group.WORLD), room
    handle, _ = _rooms[nbytes]
    out = torch.empty((handle.world_size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    if nbytes:
        module.gather_peers(handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, tensor, out, handle.rank, handle.world_size)
    return out
