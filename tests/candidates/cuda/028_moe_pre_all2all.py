"""MoE dispatch: tokens are permuted straight into symmetric memory and regrouped by local expert while they are read from the peers.

Three passes over the rows (permute, exchange, regroup) become two. What each rank sends is exchanged with one small integer
collective; everything else follows from the arguments.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

// one warp per (expert, token): last[i] counts the routed pairs up to and including i
template <typename Unit>
__global__ void permute_rows(const Unit* __restrict__ tokens, const bool* __restrict__ routed, const int64_t* __restrict__ last,
                             int64_t pairs, int64_t num_tokens, int64_t units_per_row, Unit* __restrict__ out,
                             int64_t* __restrict__ token_of_row) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
  for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32; i < pairs; i += warps) {
    if (!routed[i]) continue;
    const int64_t row = last[i] - 1, token = i % num_tokens;
    if (lane == 0) token_of_row[row] = token;
    for (int64_t u = lane; u < units_per_row; u += 32) out[row * units_per_row + u] = tokens[token * units_per_row + u];
  }
}

// chunks (count, 3): address of the first row at its source, first row here, rows; blockIdx.y is the chunk
template <typename Unit>
__global__ void pull_chunks(const int64_t* __restrict__ chunks, int64_t units_per_row, Unit* __restrict__ out) {
  const int64_t* chunk = chunks + 3 * blockIdx.y;
  const Unit* from = reinterpret_cast<const Unit*>(chunk[0]);
  Unit* to = out + chunk[1] * units_per_row;
  const int64_t units = chunk[2] * units_per_row, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) to[i] = from[i];
}

template <typename Unit>
void launch_permute(const torch::Tensor& tokens, const torch::Tensor& routed, const torch::Tensor& last, int64_t buffer,
                    torch::Tensor& token_of_row, int64_t row_bytes) {
  const int64_t pairs = routed.numel();
  permute_rows<Unit><<<(int)std::min<int64_t>((pairs + 7) / 8, 4224), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const Unit*>(tokens.data_ptr()), routed.data_ptr<bool>(), last.data_ptr<int64_t>(), pairs,
      tokens.size(0), row_bytes / (int64_t)sizeof(Unit), reinterpret_cast<Unit*>(buffer), token_of_row.data_ptr<int64_t>());
}

void permute(torch::Tensor tokens, torch::Tensor routed, torch::Tensor last, int64_t buffer, torch::Tensor token_of_row) {
  if (routed.numel() == 0 || tokens.numel() == 0) return;
  const int64_t row_bytes = (int64_t)tokens.nbytes() / tokens.size(0);
  const int64_t aligned = row_bytes | (int64_t)tokens.data_ptr();
  if (aligned % 16 == 0) launch_permute<uint4>(tokens, routed, last, buffer, token_of_row, row_bytes);
  else if (aligned % 4 == 0) launch_permute<uint32_t>(tokens, routed, last, buffer, token_of_row, row_bytes);
  else launch_permute<uint16_t>(tokens, routed, last, buffer, token_of_row, row_bytes);
}

template <typename Unit>
void launch_pull(const torch::Tensor& chunks, torch::Tensor& out, int64_t row_bytes) {
  const unsigned count = (unsigned)chunks.size(0);
  pull_chunks<Unit><<<dim3(std::max(8u, 528u / count), count), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      chunks.data_ptr<int64_t>(), row_bytes / (int64_t)sizeof(Unit), reinterpret_cast<Unit*>(out.data_ptr()));
}

void pull(torch::Tensor chunks, torch::Tensor out) {
  if (out.numel() == 0) return;
  const int64_t row_bytes = (int64_t)out.nbytes() / out.size(0);
  if (row_bytes % 16 == 0) launch_pull<uint4>(chunks, out, row_bytes);
  else if (row_bytes % 4 == 0) launch_pull<uint32_t>(chunks, out, row_bytes);
  else launch_pull<uint16_t>(chunks, out, row_bytes);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("permute", &permute);
  m.def("pull", &pull);
}
"""

_ext = None
_staging = {}


def _staging_of(group, nbytes, device):
    found = _staging.get(group.group_name)
    if found is None or found[0].numel() < nbytes:
        buffer = symm_mem.empty(max(1 << 20, 1 << (nbytes - 1).bit_length()), dtype=torch.uint8, device=device)
        found = _staging[group.group_name] = (buffer, symm_mem.rendezvous(buffer, group))
    return found


def solution(
    hidden_states: torch.Tensor,
    expert_mask: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Size]:
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("moe_dispatch", SOURCE)
    group = dist.group.WORLD if group is None else group
    world_size, rank, device = dist.get_world_size(group), dist.get_rank(group), hidden_states.device
    local_experts = num_experts // world_size
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1]).contiguous()
    row_bytes = tokens.shape[1] * tokens.element_size()

    routing_map = expert_mask.sum(dim=1)
    routed = routing_map.bool().contiguous()
    last = routed.view(-1).cumsum(0)
    num_rows = int(last[-1]) if last.numel() else 0
    if int(sum(input_splits)) != num_rows:
        raise RuntimeError(f"input_splits add up to {int(sum(input_splits))}, but {num_rows} rows are routed")

    mine = torch.tensor([int(s) for s in input_splits], dtype=torch.int64, device=device)
    gathered = torch.empty(world_size * world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(gathered, mine, group=group)
    sent = gathered.view(world_size, world_size).tolist()

    buffer, handle = _staging_of(group, max(1, max(map(sum, sent)) * row_bytes), device)
    token_of_row = torch.empty(num_rows, dtype=torch.int64, device=device)
    _ext.permute(tokens, routed, last, buffer.data_ptr(), token_of_row)
    handle.barrier(channel=0)

    # rows lie at their source by destination and, within one, by local expert; here they go by local expert, then source
    counts = num_global_tokens_per_local_expert.tolist()
    chunks, here = [], 0
    there = [sum(sent[q][:rank]) for q in range(world_size)]
    for expert in range(local_experts):
        for q in range(world_size):
            rows = int(counts[q][expert])
            chunks.append((handle.buffer_ptrs[q] + there[q] * row_bytes, here, rows))
            there[q] += rows
            here += rows
    grouped = tokens.new_empty(here, tokens.shape[1])
    _ext.pull(torch.tensor(chunks, dtype=torch.int64, device=device), grouped)
    handle.barrier(channel=1)
    return grouped, routing_map, token_of_row, tokens.shape
