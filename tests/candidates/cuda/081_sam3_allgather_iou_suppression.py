"""Masks are read from the peers, widened and packed into bits in one pass; overlaps are counted on the packed words."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;

// rows (count,): address of each object's values at its owner; blockIdx.y is the object. bits (count, words) may be null.
template <typename T>
__global__ void gather_rows(const int64_t* __restrict__ rows, int64_t n, float* __restrict__ out, unsigned* __restrict__ bits,
                            int64_t words) {
  const T* from = reinterpret_cast<const T*>(rows[blockIdx.y]);
  const int64_t stride = (int64_t)gridDim.x * THREADS;
  for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < words * 32; i += stride) {
    const float x = i < n ? static_cast<float>(from[i]) : -1.f;
    if (i < n) out[blockIdx.y * n + i] = x;
    const unsigned word = __ballot_sync(0xffffffffu, x > 0.f);
    if (bits != nullptr && threadIdx.x % 32 == 0) bits[blockIdx.y * words + i / 32] = word;
  }
}

// one block per pair i < j
__global__ void mark_suppressed(const unsigned* __restrict__ bits, int64_t words, const int64_t* __restrict__ last_occluded,
                                float threshold, bool reverse, bool* __restrict__ suppressed) {
  const int i = blockIdx.x, j = blockIdx.y;
  if (i >= j) return;
  int both = 0, either = 0;
  for (int64_t w = threadIdx.x; w < words; w += THREADS) {
    const unsigned a = bits[i * words + w], b = bits[j * words + w];
    both += __popc(a & b);
    either += __popc(a | b);
  }
  __shared__ int sums[2][THREADS / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    both += __shfl_down_sync(0xffffffffu, both, offset);
    either += __shfl_down_sync(0xffffffffu, either, offset);
  }
  if (threadIdx.x % 32 == 0) { sums[0][threadIdx.x / 32] = both; sums[1][threadIdx.x / 32] = either; }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < THREADS / 32; ++w) { both += sums[0][w]; either += sums[1][w]; }
  if ((float)both / (float)max(either, 1) < threshold) return;
  const int64_t at_i = last_occluded[i], at_j = last_occluded[j];
  const bool i_later = reverse ? at_i < at_j : at_i > at_j, j_later = reverse ? at_j < at_i : at_j > at_i;
  if (i_later && at_j > -1) suppressed[i] = true;
  if (j_later && at_i > -1) suppressed[j] = true;
}

void gather(torch::Tensor rows, at::ScalarType dtype, torch::Tensor out, std::optional<torch::Tensor> bits) {
  const int64_t count = rows.numel(), n = count ? out.numel() / count : 0, words = (n + 31) / 32;
  if (count == 0 || n == 0) return;
  const dim3 grid((unsigned)std::min<int64_t>((words * 32 + THREADS - 1) / THREADS, 256), (unsigned)count);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "gather", [&] {
    gather_rows<scalar_t><<<grid, THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        rows.data_ptr<int64_t>(), n, out.data_ptr<float>(),
        bits.has_value() ? reinterpret_cast<unsigned*>(bits->data_ptr<int>()) : nullptr, words);
  });
}

void suppress(torch::Tensor bits, torch::Tensor last_occluded, double threshold, bool reverse, torch::Tensor suppressed) {
  const unsigned count = (unsigned)bits.size(0);
  if (count < 2) return;
  mark_suppressed<<<dim3(count, count), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const unsigned*>(bits.data_ptr<int>()), bits.size(1), last_occluded.data_ptr<int64_t>(), (float)threshold,
      reverse, suppressed.data_ptr<bool>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("gather", &gather);
  m.def("suppress", &suppress);
}
"""

SUPPRESSED_LOGIT = -10.0

_ext = None
_staging = {}


def _staging_of(group, nbytes, device):
    found = _staging.get(group.group_name)
    if found is None or found[0].numel() < nbytes:
        buffer = symm_mem.empty(max(1 << 20, 1 << (nbytes - 1).bit_length()), dtype=torch.uint8, device=device)
        found = _staging[group.group_name] = (buffer, symm_mem.rendezvous(buffer, group))
    return found


def _aligned(nbytes):
    return (nbytes + 255) // 256 * 256


def solution(
    low_res_masks_local: torch.Tensor,
    obj_scores_local: torch.Tensor,
    num_obj_per_gpu: list[int],
    last_occluded: torch.Tensor,
    iou_threshold: float = 0.7,
    reverse: bool = False,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("gather_and_suppress", SOURCE)
    group = dist.group.WORLD if group is None else group
    rank, device = dist.get_rank(group), low_res_masks_local.device
    masks, scores = low_res_masks_local.contiguous(), obj_scores_local.contiguous()
    own = num_obj_per_gpu[rank]
    if masks.shape[0] != own or scores.shape[0] != own:
        raise ValueError(f"expected {own} objects, got {masks.shape[0]} masks and {scores.shape[0]} scores")

    total = sum(num_obj_per_gpu)
    out_masks = torch.empty(total, *masks.shape[1:], dtype=torch.float32, device=device)
    out_scores = torch.empty(total, *scores.shape[1:], dtype=torch.float32, device=device)
    suppressed = torch.zeros(total, dtype=torch.bool, device=device)
    if total == 0:
        return out_masks, out_scores, suppressed

    pixels = out_masks[0].numel()
    mask_bytes, score_bytes = pixels * masks.element_size(), out_scores[0].numel() * scores.element_size()
    scores_at = _aligned(max(num_obj_per_gpu) * mask_bytes)
    buffer, handle = _staging_of(group, scores_at + max(num_obj_per_gpu) * score_bytes + 1, device)
    buffer[: own * mask_bytes].view(masks.dtype).view(masks.shape).copy_(masks)
    buffer[scores_at : scores_at + own * score_bytes].view(scores.dtype).view(scores.shape).copy_(scores)

    owners = [(handle.buffer_ptrs[r], i) for r, count in enumerate(num_obj_per_gpu) for i in range(count)]
    addresses = [[at + i * mask_bytes for at, i in owners], [at + scores_at + i * score_bytes for at, i in owners]]
    mask_rows, score_rows = torch.tensor(addresses, dtype=torch.int64, device=device).unbind(0)
    bits = torch.empty(total, (pixels + 31) // 32, dtype=torch.int32, device=device)
    handle.barrier(channel=0)
    _ext.gather(mask_rows, masks.dtype, out_masks, bits)
    _ext.gather(score_rows, scores.dtype, out_scores, None)
    handle.barrier(channel=1)
    _ext.suppress(bits, last_occluded.to(device).contiguous(), iou_threshold, reverse, suppressed)
    out_masks.masked_fill_(suppressed.view(total, *([1] * (masks.dim() - 1))), SUPPRESSED_LOGIT)
    return out_masks, out_scores, suppressed
