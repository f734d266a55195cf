"""Global gradient-norm clipping: local power sums in fp64, one number pushed to every peer, the decision taken on the device.

No host synchronisation: the kernel that scales reads the norm where the kernel before it left it. Calls alternate between two sets
of slots per group, so that one barrier per call is enough.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;

__device__ double power(double x, double p) { return p == 2.0 ? x * x : p == 1.0 ? x : pow(x, p); }

template <typename T>
__global__ void add_powers(const T* __restrict__ grad, int64_t n, double p, double* __restrict__ total) {
  using Acc = at::opmath_type<T>;
  double sum = 0;
  const int64_t stride = (int64_t)gridDim.x * THREADS;
  for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += stride)
    sum += power(fabs(static_cast<double>(static_cast<Acc>(grad[i]))), p);
  __shared__ double warps[THREADS / 32];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; ++w) sum += warps[w];
    atomicAdd(total, sum);
  }
}

__global__ void push_total(const double* __restrict__ total, const int64_t* __restrict__ peers, int world, int rank, int64_t slot) {
  for (int p = threadIdx.x; p < world; p += blockDim.x) reinterpret_cast<double*>(peers[p])[slot + rank] = *total;
}

__global__ void norm_of(const double* __restrict__ totals, int count, double p, float max_norm, float* __restrict__ norm,
                        float* __restrict__ coefficient) {
  double sum = 0;
  for (int r = 0; r < count; ++r) sum += totals[r];
  const float found = (float)(p == 2.0 ? sqrt(sum) : p == 1.0 ? sum : pow(sum, 1.0 / p));
  *norm = found;
  *coefficient = found > max_norm ? max_norm / found : 1.0f;
}

template <typename T>
__global__ void scale_by(T* __restrict__ grad, int64_t n, const float* __restrict__ coefficient) {
  using Acc = at::opmath_type<T>;
  const float factor = *coefficient;
  if (factor == 1.0f) return;
  const int64_t stride = (int64_t)gridDim.x * THREADS;
  for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += stride)
    grad[i] = static_cast<T>(static_cast<Acc>(grad[i]) * static_cast<Acc>(factor));
}

static int blocks_for(int64_t n) { return (int)std::min<int64_t>((n + THREADS - 1) / THREADS, 1056); }

void accumulate(torch::Tensor grad, double p, torch::Tensor total) {
  if (grad.numel() == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "accumulate", [&] {
    add_powers<scalar_t><<<blocks_for(grad.numel()), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), grad.numel(), p, total.data_ptr<double>());
  });
}

void push(torch::Tensor total, torch::Tensor peers, int64_t rank, int64_t slot) {
  push_total<<<1, 32, 0, c10::cuda::getCurrentCUDAStream()>>>(total.data_ptr<double>(), peers.data_ptr<int64_t>(),
                                                              (int)peers.numel(), (int)rank, slot);
}

void decide(torch::Tensor totals, double p, double max_norm, torch::Tensor norm, torch::Tensor coefficient) {
  norm_of<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(totals.data_ptr<double>(), (int)totals.numel(), p, (float)max_norm,
                                                          norm.data_ptr<float>(), coefficient.data_ptr<float>());
}

void scale(torch::Tensor grad, torch::Tensor coefficient) {
  if (grad.numel() == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "scale", [&] {
    scale_by<scalar_t><<<blocks_for(grad.numel()), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), grad.numel(), coefficient.data_ptr<float>());
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("accumulate", &accumulate);
  m.def("push", &push);
  m.def("decide", &decide);
  m.def("scale", &scale);
}
"""

_ext = None
_slots = {}


def _extension():
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("clip_grad_norm_push", SOURCE)
    return _ext


def _slots_of(group, device):
    """Two sets of one fp64 per rank, for each group."""
    found = _slots.get(group.group_name)
    if found is None:
        size = dist.get_world_size(group)
        buffer = symm_mem.empty(2 * size, dtype=torch.float64, device=device)
        handle = symm_mem.rendezvous(buffer, group)
        peers = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device)
        found = _slots[group.group_name] = {"buffer": buffer, "handle": handle, "peers": peers, "size": size, "turn": 0}
    return found


def solution(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    ext = _extension()
    grads = [grad for grad in grad_tensors if grad is not None]
    device = grads[0].device if grads else torch.device("cuda", torch.cuda.current_device())
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for grad in grads:
        ext.accumulate(grad if grad.is_contiguous() else grad.contiguous(), norm_type, total)
    totals = total
    if fsdp_group is not None:
        slots = _slots_of(fsdp_group, device)
        first = slots["turn"] * slots["size"]
        slots["turn"] ^= 1
        ext.push(total, slots["peers"], dist.get_rank(fsdp_group), first)
        slots["handle"].barrier(channel=0)
        totals = slots["buffer"][first : first + slots["size"]]
    norm = torch.empty((), dtype=torch.float32, device=device)
    coefficient = torch.empty((), dtype=torch.float32, device=device)
    ext.decide(totals, norm_type, max_norm, norm, coefficient)
    for grad in grads:
        if grad.is_contiguous():
            ext.scale(grad, coefficient)
        else:
            packed = grad.contiguous()
            ext.scale(packed, coefficient)
            grad.copy_(packed)
    return norm
