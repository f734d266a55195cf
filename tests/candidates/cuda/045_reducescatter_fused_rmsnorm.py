"""Reduce-scatter + RMSNorm in one kernel: a block sums its row over all peers in shared memory, normalises and writes it."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;

template <typename T, typename Acc>
__global__ void reduce_norm(const int64_t* __restrict__ peers, int64_t chunk_bytes, int world, int64_t rows, int64_t hidden,
                            const T* __restrict__ gamma, Acc eps, T* __restrict__ out) {
  extern __shared__ unsigned char scratch[];
  Acc* mean = reinterpret_cast<Acc*>(scratch);  // (hidden,), this row averaged over the ranks
  __shared__ Acc warps[THREADS / 32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Acc squares = 0;
    for (int64_t j = threadIdx.x; j < hidden; j += THREADS) {
      Acc sum = 0;
      for (int p = 0; p < world; ++p)
        sum += static_cast<Acc>(reinterpret_cast<const T*>(peers[p] + chunk_bytes)[row * hidden + j]);
      sum /= Acc(world);
      mean[j] = sum;
      squares += sum * sum;
    }
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_down_sync(0xffffffffu, squares, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = squares;
    __syncthreads();
    Acc total = 0;
    for (int w = 0; w < THREADS / 32; ++w) total += warps[w];
    const Acc scale = Acc(1) / sqrt(total / Acc(hidden) + eps);
    for (int64_t j = threadIdx.x; j < hidden; j += THREADS)
      out[row * hidden + j] = static_cast<T>(mean[j] * scale * static_cast<Acc>(gamma[j]));
    __syncthreads();
  }
}

void reduce_norm_into(torch::Tensor peers, int64_t chunk_bytes, torch::Tensor gamma, double eps, torch::Tensor out) {
  const int64_t hidden = gamma.numel(), rows = hidden ? out.numel() / hidden : 0;
  if (rows == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "reduce_norm", [&] {
    using Acc = at::opmath_type<scalar_t>;
    const size_t shared = hidden * sizeof(Acc);
    TORCH_CHECK(shared <= 220 * 1024, "rows of ", hidden, " elements do not fit shared memory");
    if (shared > 40 * 1024)
      cudaFuncSetAttribute(reduce_norm<scalar_t, Acc>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    reduce_norm<scalar_t, Acc><<<(int)std::min<int64_t>(rows, 4224), THREADS, shared, c10::cuda::getCurrentCUDAStream()>>>(
        peers.data_ptr<int64_t>(), chunk_bytes, (int)peers.numel(), rows, hidden, gamma.data_ptr<scalar_t>(), (Acc)eps,
        out.data_ptr<scalar_t>());
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("reduce_norm_into", &reduce_norm_into); }
"""

_state = {"half": 0, "calls": 0}


def _workspace(nbytes, device):
    """Two halves, used in turn, so that one barrier per call is enough."""
    if "ext" not in _state:
        _state["ext"] = compile_cuda_extension("reducescatter_rmsnorm", SOURCE)
    if _state["half"] < nbytes:
        _state["half"] = max(1 << 20, 1 << (nbytes - 1).bit_length())
        _state["buffer"] = symm_mem.empty(2 * _state["half"], dtype=torch.uint8, device=device)
        _state["handle"] = symm_mem.rendezvous(_state["buffer"], dist.group.WORLD)
        _state["peers"] = torch.tensor(_state["handle"].buffer_ptrs, dtype=torch.int64, device=device)


@torch.no_grad()
def solution(rs_input_1d: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    world_size, rank, hidden = dist.get_world_size(), dist.get_rank(), gamma.numel()
    chunk = rs_input_1d.numel() // world_size
    assert chunk % hidden == 0, f"a chunk of {chunk} elements does not consist of rows of {hidden}"
    nbytes = rs_input_1d.numel() * rs_input_1d.element_size()
    _workspace(max(nbytes, 1), rs_input_1d.device)
    base = (_state["calls"] % 2) * _state["half"]
    _state["calls"] += 1
    _state["buffer"][base : base + nbytes].view(rs_input_1d.dtype).copy_(rs_input_1d)
    _state["handle"].barrier(channel=0)
    out = torch.empty(chunk // hidden, hidden, dtype=rs_input_1d.dtype, device=rs_input_1d.device)
    mine = base + rank * chunk * rs_input_1d.element_size()
    _state["ext"].reduce_norm_into(_state["peers"], mine, gamma.to(rs_input_1d.dtype).contiguous(), eps, out)
    return out
