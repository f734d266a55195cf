"""Forward pass of an expert-parallel mixture-of-experts layer: router, dispatch, SwiGLU expert, combine.

The feed-forward layer of a Mixtral-like model under expert parallelism (VeOmni). E experts are spread over the W ranks of a
group: rank d owns the E / W consecutive experts from d * E / W on. One MLP per rank serves all experts of that rank.

Each rank holds its own T tokens (their number may differ by rank), the replicated router, and its own MLP. A token is sent
to the owners of its k best experts; their outputs come back, are weighted by the router's probabilities, and added up.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def exchange(rows: torch.Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all along dim 0: ``send[d]`` rows go to rank d, ``receive[q]`` rows come from rank q, in rank order."""
    received = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(received, rows, receive, send, group=group)
    return received


def transpose_chunks(rows: torch.Tensor, sizes: list[list[int]]) -> torch.Tensor:
    """Reorder chunks of rows: chunk (i, j) has ``sizes[i][j]`` rows, i is the outer index before and the inner one after."""
    outer, inner = len(sizes), len(sizes[0])
    chunks = rows.split([n for row in sizes for n in row], dim=0)
    return torch.cat([chunks[i * inner + j] for j in range(inner) for i in range(outer)], dim=0)


@torch.no_grad()
def solution(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_bias: torch.Tensor | None,
    gate_proj: torch.nn.Linear,
    up_proj: torch.nn.Linear,
    down_proj: torch.nn.Linear,
    num_experts: int,
    top_k: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the layer's output for this rank's tokens, (T, H).

    hidden_states: (T, H), or (..., H) with T tokens in all. gate_weight: (E, H) and gate_bias: (E,) or None, the router.
    gate_proj, up_proj: H -> I. down_proj: I -> H.
    """
    group = group if group is not None else dist.group.WORLD
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    experts_per_rank = num_experts // world_size
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    num_tokens = tokens.shape[0]

    # Router: probabilities over all experts, the k largest of each token (not renormalised).
    probabilities = torch.softmax(F.linear(tokens, gate_weight, gate_bias), dim=-1)
    weights, experts = torch.topk(probabilities, top_k, dim=-1)

    # How many rows go to every rank, and how many come from every rank for each of our experts.
    counts = torch.bincount(experts.reshape(-1), minlength=num_experts)
    all_counts = torch.empty(world_size * num_experts, dtype=counts.dtype, device=counts.device)
    dist.all_gather_into_tensor(all_counts, counts, group=group)
    per_expert = all_counts.view(world_size, world_size, experts_per_rank)[:, rank].tolist()  # [source][local expert]
    output_splits = [sum(from_source) for from_source in per_expert]
    input_splits = counts.view(world_size, experts_per_rank).sum(dim=1).tolist()

    # Dispatch: rows ordered by expert, then by token, go to the owners of the experts.
    routing_map = torch.zeros(num_experts, num_tokens, dtype=torch.bool, device=tokens.device)
    routing_map.scatter_(0, experts.T, True)
    token_of_row = routing_map.nonzero()[:, 1]
    if sum(input_splits) != token_of_row.shape[0]:
        raise RuntimeError(f"{sum(input_splits)} rows to send, but {token_of_row.shape[0]} routed (token, expert) pairs")
    received = exchange(tokens[token_of_row], input_splits, output_splits, group)

    # Expert MLP on the rows grouped by local expert, then back to the order in which they came.
    x = transpose_chunks(received, per_expert)
    y = down_proj(F.silu(gate_proj(x)) * up_proj(x))
    per_source = [list(column) for column in zip(*per_expert, strict=True)]  # [local expert][source]
    returned = exchange(transpose_chunks(y, per_source), output_splits, input_splits, group)

    # Combine: weight each row, add the rows of a token at least in fp32, round once.
    weight_of = torch.zeros(num_tokens, num_experts, dtype=weights.dtype, device=weights.device)
    weight_of.scatter_(1, experts, weights)
    weighted = returned * weight_of.T[routing_map].unsqueeze(1)
    total = torch.zeros(tokens.shape, dtype=torch.promote_types(tokens.dtype, torch.float32), device=tokens.device)
    total.index_add_(0, token_of_row, weighted.to(total.dtype))
    return total.to(tokens.dtype)
