"""Sum all-reduce: every rank stages its addend in symmetric memory and reads all peers directly, accumulating in fp32."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>

template <typename T> __device__ float widen(T x);
template <> __device__ float widen(float x) { return x; }
template <> __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T> __device__ T narrow(float x);
template <> __device__ float narrow(float x) { return x; }
template <> __device__ __nv_bfloat16 narrow(float x) { return __float2bfloat16(x); }

template <typename T>
__global__ void sum_peers(const int64_t* __restrict__ peers, int world, T* __restrict__ out, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    float total = 0.f;
    for (int r = 0; r < world; ++r) total += widen(reinterpret_cast<const T*>(peers[r])[i]);
    out[i] = narrow<T>(total);
  }
}

void sum_into(torch::Tensor peers, torch::Tensor out) {
  const int64_t n = out.numel();
  if (n == 0) return;
  const int blocks = (int)std::min<int64_t>((n + 255) / 256, 1056);
  auto stream = at::cuda::getCurrentCUDAStream();
  if (out.scalar_type() == torch::kBFloat16)
    sum_peers<__nv_bfloat16><<<blocks, 256, 0, stream>>>(peers.data_ptr<int64_t>(), peers.numel(),
        reinterpret_cast<__nv_bfloat16*>(out.data_ptr()), n);
  else
    sum_peers<float><<<blocks, 256, 0, stream>>>(peers.data_ptr<int64_t>(), peers.numel(), out.data_ptr<float>(), n);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum_into", &sum_into); }
"""

_state = {}


def _extension():
    if "ext" not in _state:
        if dist.get_rank() == 0:
            _state["ext"] = compile_cuda_extension("allreduce_peers", SOURCE)
        dist.barrier()
        if dist.get_rank() != 0:
            _state["ext"] = compile_cuda_extension("allreduce_peers", SOURCE)
    return _state["ext"]


def _workspace(n, dtype, device):
    found = _state.get(dtype)
    if found is None or found[0].numel() < n:
        buffer = symm_mem.empty(max(n, 1), dtype=dtype, device=device)
        handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
        peers = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device)
        found = _state[dtype] = (buffer, handle, peers)
    return found


def solution(tensor: torch.Tensor) -> torch.Tensor:
    extension = _extension()
    buffer, handle, peers = _workspace(tensor.numel(), tensor.dtype, tensor.device)
    buffer[: tensor.numel()].copy_(tensor.reshape(-1))
    handle.barrier(channel=0)
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    extension.sum_into(peers, out)
    handle.barrier(channel=1)
    return out
