"""Dispatch of a mixture-of-experts layer: sort tokens by expert, exchange them, group what arrives by local expert.

With expert parallelism rank d of W owns experts d*E/W .. (d+1)*E/W - 1. Each rank holds its own tokens, their routing and the
row counts that a preceding step exchanged. It copies each token once per chosen expert, in expert order, sends the rows to the
experts' owners, and reorders what it receives so that the rows of each local expert lie together, ready for a grouped GEMM
(VeOmni's expert parallelism, after Megatron-LM's token permutation).
"""

import torch
import torch.distributed as dist


def solution(
    hidden_states: torch.Tensor,
    expert_mask: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Size]:
    """Return (rows grouped by local expert, routing_map, token of each sent row, shape of the flattened input).

    hidden_states: (T, H), or (..., H) which is flattened; T may differ by rank. expert_mask: (E, k, T), one-hot
    [expert, slot, token]. num_experts: E, a multiple of W. input_splits, output_splits: rows sent to and received from each
    rank. num_global_tokens_per_local_expert: (W, E / W) integers [source rank, local expert]. group: None means the world.
    Returns (sum of output_splits, H), ordered by local expert and within it by source rank; (E, T), the number of slots in
    which a token names an expert, in the mask's dtype; (R,) int64; torch.Size((T, H)). A token that names an expert twice is
    sent once. Raises RuntimeError if input_splits do not add up to the R routed rows.
    """
    world_size = dist.get_world_size(group)
    num_local_experts = num_experts // world_size
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])  # (T, H)

    # permute: one row per (expert, token), experts ascending and tokens ascending within each
    routing_map = expert_mask.sum(dim=1)  # (E, T)
    token_of_row = routing_map.bool().nonzero()[:, 1]  # (R,), in row-major order of (expert, token)
    permuted = tokens[token_of_row]

    num_rows = permuted.shape[0]
    if int(sum(input_splits)) != num_rows:
        raise RuntimeError(f"input_splits add up to {int(sum(input_splits))}, but {num_rows} rows are routed")

    # exchange: the rows for rank d's experts go to rank d
    if world_size == 1:
        received = permuted
    else:
        received = permuted.new_empty(sum(output_splits) if output_splits else num_rows, permuted.shape[1])
        dist.all_to_all_single(
            received,
            permuted,
            output_split_sizes=output_splits or None,
            input_split_sizes=input_splits,
            group=group,
        )

    # regroup: from (source rank, local expert) to (local expert, source rank) order
    chunk_sizes = num_global_tokens_per_local_expert.reshape(-1).tolist()
    chunks = received.split(chunk_sizes)
    order = [q * num_local_experts + j for j in range(num_local_experts) for q in range(world_size)]
    grouped = torch.cat([chunks[i] for i in order])
    return grouped, routing_map, token_of_row, tokens.shape
