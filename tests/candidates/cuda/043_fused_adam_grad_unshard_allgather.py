"""Adam on the own shard and the all-gather in one kernel: every updated element is written straight into all ranks' results.

Calls alternate between two result regions, so that one barrier per call is enough; the result is copied out in stream order.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAStream.h>

template <typename T, typename Acc>
__global__ void adam_push(const T* __restrict__ grad, const T* __restrict__ master, const T* __restrict__ exp_avg,
                          const T* __restrict__ exp_avg_sq, int64_t n, Acc lr, Acc beta1, Acc beta2, Acc rest1, Acc rest2,
                          Acc eps, Acc correction1, Acc correction2, const int64_t* __restrict__ peers, int world, int rank, int64_t base_bytes) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += stride) {
    const Acc g = static_cast<Acc>(grad[i]);
    const Acc m = static_cast<Acc>(exp_avg[i]) * beta1 + g * rest1;  // rest = 1 - beta, taken in double: in fp32 it loses four digits
    const Acc v = static_cast<Acc>(exp_avg_sq[i]) * beta2 + g * g * rest2;
    const Acc update = m / correction1 / (sqrt(v / correction2) + eps);
    const T w = static_cast<T>(static_cast<Acc>(master[i]) - lr * update);
    for (int p = 0; p < world; ++p) reinterpret_cast<T*>(peers[p] + base_bytes)[rank * n + i] = w;
  }
}

void step(torch::Tensor grad, torch::Tensor master, torch::Tensor exp_avg, torch::Tensor exp_avg_sq, double lr, double beta1,
          double beta2, double eps, int64_t count, torch::Tensor peers, int64_t rank, int64_t base_bytes) {
  const int64_t n = master.numel();
  const double correction1 = 1 - std::pow(beta1, (double)count), correction2 = 1 - std::pow(beta2, (double)count);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, master.scalar_type(), "adam_push", [&] {
    using Acc = at::opmath_type<scalar_t>;
    adam_push<scalar_t, Acc><<<(int)std::min<int64_t>((n + 255) / 256, 1056), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), master.data_ptr<scalar_t>(), exp_avg.data_ptr<scalar_t>(), exp_avg_sq.data_ptr<scalar_t>(), n,
        (Acc)lr, (Acc)beta1, (Acc)beta2, (Acc)(1 - beta1), (Acc)(1 - beta2), (Acc)eps, (Acc)correction1, (Acc)correction2,
        peers.data_ptr<int64_t>(), (int)peers.numel(), (int)rank, base_bytes);
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("step", &step); }
"""

_state = {"half": 0, "calls": 0}


def _workspace(nbytes, device):
    if "ext" not in _state:
        if dist.get_rank() == 0:
            _state["ext"] = compile_cuda_extension("adam_push_allgather", SOURCE)
        dist.barrier()
        if dist.get_rank() != 0:
            _state["ext"] = compile_cuda_extension("adam_push_allgather", SOURCE)
    if _state["half"] < nbytes:
        _state["half"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(2 * _state["half"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)


def solution(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    assert step >= 1 and master_shard.numel() > 0
    world_size, rank, dtype = dist.get_world_size(), dist.get_rank(), master_shard.dtype
    nbytes = world_size * master_shard.numel() * master_shard.element_size()
    _workspace(nbytes, master_shard.device)
    base = (_state["calls"] % 2) * _state["half"]
    _state["calls"] += 1
    shards = [t.contiguous() for t in (grad_shard, master_shard, exp_avg, exp_avg_sq)]
    _state["ext"].step(*shards, lr, beta1, beta2, eps, step, _state["peers"], rank, base)
    _state["handle"].barrier(channel=0)
    return _state["buffer"][base : base + nbytes].view(dtype).clone()
