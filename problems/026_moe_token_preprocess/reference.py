"""Row counts for an expert-parallel token exchange, from each rank's own routing mask.

Before tokens can be sent to the ranks that own their experts, every rank must know how many rows it sends to and receives
from each peer, and how many rows each peer sends for each of its own experts (VeOmni's metadata step before the MoE
dispatch). Each rank holds the one-hot routing of its own tokens; rank d owns experts d*E/W .. (d+1)*E/W - 1. The results
lie on the CPU, where the exchange that follows wants them.
"""

import torch
import torch.distributed as dist


def solution(
    expert_mask: torch.Tensor, num_experts: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (input_splits, output_splits, tokens_per_source_and_expert, tokens_per_expert), all on the CPU.

    expert_mask: (E, k, T), one-hot [expert, slot, token], fp32 or another numeric dtype, whose sum has dtype C (fp32 for fp32,
    int64 for any integer); T may differ by rank. num_experts: E, a multiple of the group's W ranks. group: None means the world.
    Returns int64 (W,): rows sent to each rank; int64 (W,): rows received from each rank; (W, E / W) of dtype C: rows that each
    rank sends for each of this rank's experts; (E / W,) of dtype C: its sum over the ranks. A token that names an expert in two
    slots counts twice.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    num_local_experts = num_experts // world_size

    # rows of this rank for every expert, and for every rank
    count = expert_mask.sum(dim=(1, 2))  # (E,)
    input_splits = count.view(world_size, num_local_experts).sum(dim=1).tolist()

    # all ranks' rows for all experts, of which this rank needs the columns of its own
    gathered = torch.empty(world_size * num_experts, dtype=count.dtype, device=count.device)
    dist.all_gather_into_tensor(gathered, count, group=group)
    own = slice(rank * num_local_experts, (rank + 1) * num_local_experts)
    tokens_per_source_and_expert = gathered.view(world_size, num_experts)[:, own].contiguous()
    output_splits = tokens_per_source_and_expert.sum(dim=1).tolist()
    tokens_per_expert = tokens_per_source_and_expert.sum(dim=0)

    return (
        torch.tensor(input_splits, dtype=torch.int64),
        torch.tensor(output_splits, dtype=torch.int64),
        tokens_per_source_and_expert.cpu(),
        tokens_per_expert.cpu(),
    )
