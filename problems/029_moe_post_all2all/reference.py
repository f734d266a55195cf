"""Mixture-of-experts combine: bring expert outputs home and add them up per token.

The second half of an expert-parallel MoE layer (VeOmni, Megatron-LM). The E experts are spread over the W ranks of a group,
E / W consecutive ones each. Every rank has run its experts on the rows that all ranks had sent it; now each row returns to
the rank that owns its token, is multiplied by the router's weight, and is added into that token's output.

Each rank holds ``expert_outputs`` (rows of its own experts, grouped by local expert and, within one, by source rank) and
the routing of its own T tokens, k experts each. Ranks may hold different numbers of tokens and rows, or none.
"""

import torch
import torch.distributed as dist


def solution(
    expert_outputs: torch.Tensor,
    routing_weights: torch.Tensor,
    selected_experts: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    routing_map: torch.Tensor,
    local_input_permutation_mapping: torch.Tensor,
    org_hidden_states_shape: torch.Size,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the combined token outputs of this rank, (T, H).

    expert_outputs: (sum of output_splits, H), local expert outer, source rank inner.
    routing_weights, selected_experts: (T, k), weight and expert index of each of a token's k slots.
    input_splits[d]: rows this rank had sent to rank d. output_splits[q]: rows it had received from rank q.
    num_global_tokens_per_local_expert: (W, E / W), rows from rank q for local expert j.
    routing_map: (E, T), true where the token chose the expert.
    local_input_permutation_mapping: (sum of input_splits,), token of each sent row, ordered by expert, then by token.
    org_hidden_states_shape: (T, H).
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    experts_per_rank = num_experts // world_size

    # Regroup the rows by source rank, so that what returns to one rank is contiguous.
    sizes = num_global_tokens_per_local_expert.T.reshape(-1).tolist()
    chunks = expert_outputs.split(sizes, dim=0)
    to_send = torch.cat([chunks[j * world_size + q] for q in range(world_size) for j in range(experts_per_rank)], dim=0)

    # Send every row home: the dispatch's exchange with the two split lists swapped.
    if world_size == 1:
        rows = to_send
    else:
        num_rows = sum(input_splits) if input_splits else to_send.shape[0]
        rows = to_send.new_empty(num_rows, *to_send.shape[1:])
        dist.all_to_all_single(rows, to_send, input_splits or None, output_splits, group=group)

    # The weight of each returned row, in the order of the rows: experts ascending, then tokens ascending.
    num_tokens = routing_weights.shape[0]
    weight_of = torch.zeros(num_tokens, num_experts, dtype=routing_weights.dtype, device=routing_weights.device)
    weight_of.scatter_add_(1, selected_experts, routing_weights)
    row_weights = weight_of.T[routing_map.bool()]
    if row_weights.shape[0] != rows.shape[0]:
        raise ValueError(f"{rows.shape[0]} rows came back for {row_weights.shape[0]} routed (token, expert) pairs")
    weighted = rows * row_weights.unsqueeze(1)

    # Add the rows up per token, at least in fp32, and round once.
    total = torch.zeros(
        org_hidden_states_shape, dtype=torch.promote_types(weighted.dtype, torch.float32), device=weighted.device
    )
    total.index_add_(0, local_input_permutation_mapping, weighted.to(total.dtype))
    return total.to(weighted.dtype)
