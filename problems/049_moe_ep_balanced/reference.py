"""Mixture-of-experts layer under expert parallelism, one expert per rank (E = G).

Every token goes to its top-k experts, is transformed there by a SiLU-gated MLP and comes back, weighted by its router
probability. Each rank of the group holds its own tokens, the whole (replicated) router and one expert: expert x lives on
group rank x // (E / G). The token exchange is the all-to-all that dominates expert-parallel training and inference of
Mixtral- and DeepSeek-style models (VeOmni, Megatron-LM, DeepSpeed-MoE).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


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
    """One MoE layer over the tokens of this rank.

    hidden_states: (T, H) local tokens (leading dimensions are flattened; T may differ by rank). gate_weight: (E, H), gate_bias:
    (E,) or None, equal on all ranks. gate_proj, up_proj: Linear(H, I) with bias; down_proj: Linear(I, H) with bias.
    Returns (T, H) in the dtype of hidden_states. Forward only.
    """
    group = dist.group.WORLD if group is None else group
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    local_experts = num_experts // size
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])

    # Router: top-k of the softmax; the weights are not renormalised.
    probabilities = torch.softmax(F.linear(hidden, gate_weight, gate_bias), dim=-1)
    weights, experts = torch.topk(probabilities, top_k, dim=-1)
    chosen = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(1, experts, True)  # (T, E)
    weight_of = torch.zeros_like(probabilities).scatter_(1, experts, weights)  # (T, E)

    # Who sends how many rows where: every rank learns counts[i, x] = rows that rank i has for expert x.
    counts = torch.empty(size * num_experts, dtype=torch.int64, device=hidden.device)
    dist.all_gather_into_tensor(counts, chosen.sum(dim=0), group=group)
    counts = counts.view(size, num_experts)
    send_rows = counts[rank].view(size, local_experts).sum(dim=1).tolist()
    segments = counts[:, rank * local_experts : (rank + 1) * local_experts]  # (source rank, local expert)
    receive_rows = segments.sum(dim=1).tolist()

    # Permute: one copy of the token per chosen expert, ordered by expert, then by token.
    expert_of_row, token_of_row = chosen.t().nonzero(as_tuple=True)
    send = hidden[token_of_row]

    # Dispatch. Rows arrive ordered by source rank, then local expert, then token.
    received = exchange_rows(send, send_rows, receive_rows, group)

    # Regroup the segments to local expert first, source rank second.
    pieces = received.split(segments.flatten().tolist())
    by_expert = [pieces[i * local_experts + l] for l in range(local_experts) for i in range(size)]
    rows = torch.cat(by_expert)

    # The local MLP.
    outputs = down_proj(F.silu(gate_proj(rows)) * up_proj(rows))

    # Undo the regrouping and send every row back where it came from.
    pieces = outputs.split(segments.t().flatten().tolist())
    by_source = [pieces[l * size + i] for i in range(size) for l in range(local_experts)]
    returned = exchange_rows(torch.cat(by_source), receive_rows, send_rows, group)

    # Combine: each token is the sum of its experts' rows, weighted.
    weighted = returned * weight_of[token_of_row, expert_of_row].unsqueeze(1)
    return torch.zeros_like(hidden).index_add_(0, token_of_row, weighted)


def exchange_rows(rows: torch.Tensor, send_rows: list[int], receive_rows: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all of rows: the first send_rows[0] go to group rank 0, the next send_rows[1] to rank 1, and so on."""
    if dist.get_world_size(group) == 1:
        return rows
    received = rows.new_empty(sum(receive_rows), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receive_rows, send_rows, group=group)
    return received
