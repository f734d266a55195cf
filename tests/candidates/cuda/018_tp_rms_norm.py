"""RMSNorm over a sharded hidden dimension: one kernel sums squares and pushes one fp32 per row to every peer, one normalises.

Only the row statistics cross the link. Calls alternate between two sets of slots, so that one barrier per call is enough.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;

template <typename Acc>
__device__ Acc block_sum(Acc x) {
  __shared__ Acc warps[THREADS / 32];
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  Acc total = 0;
  for (int w = 0; w < THREADS / 32; ++w) total += warps[w];
  __syncthreads();
  return total;
}

// statistics of peer p: (world, rows), row r written by rank r
template <typename T, typename Acc>
__global__ void push_squares(const T* __restrict__ x, int64_t columns, int64_t rows, const int64_t* __restrict__ peers,
                             int world, int rank, int64_t base_bytes) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Acc sum = 0;
    for (int64_t j = threadIdx.x; j < columns; j += THREADS) {
      const Acc v = static_cast<Acc>(x[row * columns + j]);
      sum += v * v;
    }
    sum = block_sum(sum);
    for (int p = threadIdx.x; p < world; p += THREADS)
      reinterpret_cast<Acc*>(peers[p] + base_bytes)[rank * rows + row] = sum;
  }
}

template <typename T, typename Acc>
__global__ void normalise(const T* __restrict__ x, const T* __restrict__ weight, const Acc* __restrict__ squares, int64_t columns,
                          int64_t rows, int world, double epsilon, T* __restrict__ out) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Acc total = 0;
    for (int p = 0; p < world; ++p) total += squares[p * rows + row];
    const Acc scale = Acc(1) / sqrt(total / Acc(columns * world) + Acc(epsilon));
    for (int64_t j = threadIdx.x; j < columns; j += THREADS) {
      const T rounded = static_cast<T>(static_cast<Acc>(x[row * columns + j]) * scale);
      out[row * columns + j] = static_cast<T>(static_cast<Acc>(weight[j]) * static_cast<Acc>(rounded));
    }
  }
}

void push_squares_of(torch::Tensor x, torch::Tensor peers, int64_t rank, int64_t base_bytes) {
  const int64_t columns = x.size(-1), rows = columns ? x.numel() / columns : 0;
  if (rows == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "push_squares", [&] {
    using Acc = at::opmath_type<scalar_t>;
    push_squares<scalar_t, Acc><<<(int)std::min<int64_t>(rows, 4224), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), columns, rows, peers.data_ptr<int64_t>(), (int)peers.numel(), (int)rank, base_bytes);
  });
}

void normalise_into(torch::Tensor x, torch::Tensor weight, int64_t squares, int64_t world, double epsilon, torch::Tensor out) {
  const int64_t columns = x.size(-1), rows = columns ? x.numel() / columns : 0;
  if (rows == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "normalise", [&] {
    using Acc = at::opmath_type<scalar_t>;
    normalise<scalar_t, Acc><<<(int)std::min<int64_t>(rows, 4224), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), reinterpret_cast<const Acc*>(squares), columns, rows, (int)world,
        epsilon, out.data_ptr<scalar_t>());
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("push_squares_of", &push_squares_of);
  m.def("normalise_into", &normalise_into);
}
"""

_state = {"half": 0, "calls": 0}


def _workspace(nbytes, device):
    if "ext" not in _state:
        _state["ext"] = compile_cuda_extension("tp_rms_norm_push", SOURCE)
    if _state["half"] < nbytes:
        _state["half"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(2 * _state["half"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)


def solution(local_hidden_states: torch.Tensor, local_weight: torch.Tensor, variance_epsilon: float) -> torch.Tensor:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    x = local_hidden_states.contiguous()
    rows = x.numel() // max(1, x.shape[-1])
    _workspace(max(1, 8 * world_size * rows), x.device)
    base = (_state["calls"] % 2) * _state["half"]
    _state["calls"] += 1
    ext, handle = _state["ext"], _state["handle"]
    ext.push_squares_of(x, _state["peers"], rank, base)
    handle.barrier(channel=0)
    out = torch.empty_like(x)
    ext.normalise_into(x, local_weight.contiguous(), handle.buffer_ptrs[rank] + base, world_size, variance_epsilon, out)
    return out
