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


def popularity(ctx: Context, rank: int | None, num_experts: int, top_k: int) -> Any:
    """Log-popularity (num_experts,), fp32, of the experts among the tokens of ``rank``, or of all ranks if None.

    Zipf-like over all ranks, with one expert hot on this rank only; one expert that nobody chooses, where more than ``top_k``
    exist. In the edge trial every rank prefers the experts of the last rank to all others, so that the others receive
    nothing.
    """
    import torch

    everywhere = ctx.stream("popularity")
    bias = -torch.log1p(everywhere.permutation(num_experts).float())
    if rank is not None:
        bias[ctx.of(rank).integer(0, num_experts)] += 1.5
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


def router(ctx: Context, hidden: int, num_experts: int, top_k: int, scale: float) -> tuple[Any, Any]:
    """A replicated linear router: weight (num_experts, hidden) and bias (num_experts,) or None, in the requested dtype.

    Logits are of order one for tokens of RMS ``scale``. The bias is skewed like ``popularity``; it is absent in the integers
    trial, where an implementation must cope without.
    """
    draw = ctx.stream("router")
    weight = draw.randn(num_experts, hidden, scale=1.0 / (scale * hidden**0.5))
    if ctx.variant == "integers":
        return weight, None
    # Cold experts are pushed down, not hot ones up: large logits would lose the digits that separate the hot ones.
    bias = popularity(ctx, None, num_experts, top_k)
    bias = (bias - bias.topk(top_k).values[-1]).clamp(-30.0, 1.0)
    return weight, bias.to(ctx.dtype)


def separated_tokens(draw: Draw, tokens: int, weight: Any, bias: Any, top_k: int) -> Any:
    """Tokens (tokens, hidden) whose top-k experts are the same for every honest implementation.

    Tokens whose k-th and (k+1)-th logit lie closer than the rounding of bfloat16 logits could confuse are drawn again.
    """
    import torch

    num_experts, hidden = weight.shape
    x = draw.values(tokens, hidden)
    unsure = torch.arange(tokens, device=x.device)
    while top_k < num_experts and len(unsure):
        logits = torch.nn.functional.linear(x[unsure].float(), weight.float(), None if bias is None else bias.float())
        best = logits.topk(top_k + 1, dim=1).values
        gap = best[:, top_k - 1] - best[:, top_k]
        unsure = unsure[gap < 0.1 + 0.02 * best[:, top_k].abs()]
        if len(unsure):
            x[unsure] = draw.values(len(unsure), hidden)
    return x


def linear(draw: Draw, fan_in: int, fan_out: int, scale: float = 1.0) -> Any:
    """An ``nn.Linear`` without gradients: weight of standard deviation ``scale``/sqrt(fan_in), bias of 0.3."""
    import torch

    module = torch.nn.utils.skip_init(torch.nn.Linear, fan_in, fan_out, device=draw.device, dtype=draw.dtype)
    module.requires_grad_(False)
    module.weight.copy_(draw.randn(fan_out, fan_in, scale=scale / fan_in**0.5))
    module.bias.copy_(draw.randn(fan_out, scale=0.3))
    return module
