"""Where the tokens of every rank go in an expert-parallel exchange: skewed, different by rank, known to all ranks."""

from __future__ import annotations

from typing import Any

from pkb.draw import Draw
from pkb.inputs.routing import popularity
from pkb.problem import Context


def tokens_by_rank(ctx: Context, tokens: int) -> list[int]:
    """How many tokens each rank holds, equal on all ranks.

    The nominal number in the plain trial; otherwise between a half of it and all of it. In the edge trial the last rank has
    none.
    """
    if ctx.variant == "plain":
        return [tokens] * ctx.world_size
    counts = ctx.stream("tokens").integers(max(1, tokens // 2), tokens + 1, ctx.world_size).tolist()
    if ctx.variant == "edge":
        counts[-1] = 0
    return counts


def odds_of(ctx: Context, num_experts: int, top_k: int, rank: int | None = None) -> Any:
    """Odds (num_experts,), fp32, of the experts among the tokens of all ranks, or of one rank, which has a hot expert.

    Zipf-like, with one expert that nobody chooses where more than ``top_k`` exist. In the edge trial only the experts of the
    last rank are chosen (it needs ``top_k`` of them), so that the other ranks receive nothing.
    """
    draw = ctx.stream("odds")
    empty = [draw.integer(0, num_experts)] if num_experts > top_k else []
    if ctx.variant == "edge":
        empty = list(range(num_experts - num_experts // ctx.world_size))
    odds = popularity(draw, num_experts, empty)
    if rank is not None:
        odds[ctx.of(rank).integer(0, num_experts)] *= 4.0
    return odds


def choose_experts(draw: Draw, tokens: int, odds: Any, top_k: int) -> Any:
    """Distinct experts (tokens, top_k), int64, drawn without replacement; in order of score, not of index."""
    import torch

    gumbel = -torch.log(-torch.log(draw.uniform(1e-6, 1.0, tokens, odds.numel(), dtype=torch.float32)))
    return (torch.log(odds) + gumbel).topk(top_k, dim=1).indices


def expert_counts(experts: Any, num_experts: int) -> Any:
    """Tokens per expert, (num_experts,), int64."""
    import torch

    return torch.bincount(experts.reshape(-1), minlength=num_experts)
