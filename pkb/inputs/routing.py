"""Mixture-of-experts routing: skewed, different on every rank, and consistent between ranks."""

from __future__ import annotations

from typing import Any

from pkb.draw import Draw
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


def popularity(ctx: Context, rank: int, num_experts: int, top_k: int) -> Any:
    """Log-popularity (num_experts,), fp32, of the experts among the tokens of ``rank``.

    Zipf-like over all ranks, with an expert hot on this rank only; one expert that nobody chooses, where more than ``top_k``
    exist. In the edge trial every rank prefers the experts of the last rank to all others, so that the others receive
    nothing.
    """
    import torch

    everywhere = ctx.stream("popularity")
    here = ctx.of(rank)
    bias = -torch.log1p(everywhere.permutation(num_experts).float())
    bias[here.integer(0, num_experts)] += 1.5
    if num_experts > top_k:
        bias[everywhere.integer(0, num_experts)] = -1e4
    if ctx.variant == "edge":
        bias[-(num_experts // ctx.world_size) :] += 1e3
    return bias


def choose_experts(draw: Draw, tokens: int, bias: Any, top_k: int) -> Any:
    """Distinct experts (tokens, top_k), int64, by falling score (not by index): top-k of log-popularity plus noise."""
    import torch

    scores = draw.randn(tokens, bias.numel(), dtype=torch.float32) + bias
    return scores.topk(top_k, dim=1).indices


def expert_counts(experts: Any, num_experts: int) -> Any:
    """Tokens per expert, (num_experts,), int64."""
    import torch

    return torch.bincount(experts.reshape(-1), minlength=num_experts)
