"""Inputs with a planted answer: routing with a clear margin, attention with a clear match, FP8 scales that matter.

Plain normal data makes some problems undecidable or trivial: a router whose k-th and (k+1)-th probability are equal after
rounding has two right answers, and attention over many independent keys is an average near zero. These helpers shape the
data so that the answer depends on what it should, by a margin that rounding cannot bridge. For use in ``make_inputs``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pkb.draw import Draw
from pkb.problem import Context


def linear(draw: Draw, n_in: int, n_out: int, gain: float = 1.0) -> Any:
    """An ``nn.Linear`` with bias, weights of standard deviation gain/sqrt(n_in), in the requested dtype, without gradients."""
    import torch

    layer = torch.nn.utils.skip_init(torch.nn.Linear, n_in, n_out, device=draw.device, dtype=draw.dtype)
    with torch.no_grad():
        layer.weight.copy_(draw.randn(n_out, n_in, scale=gain / math.sqrt(n_in)))
        layer.bias.copy_(draw.randn(n_out, scale=0.3 * gain))
    return layer.requires_grad_(False)


def popularity(draw: Draw, experts: int, empty: Sequence[int] = ()) -> Any:
    """How often each expert is chosen, float32 (experts,): Zipf's 1/(i+1) in random order, zero for those in ``empty``."""
    import torch

    weights = 1.0 / (1.0 + torch.arange(experts, device=draw.device, dtype=torch.float32))
    weights = weights[draw.permutation(experts)]
    weights[list(empty)] = 0.0
    return weights


def routed_tokens(draw: Draw, tokens: int, top_k: int, weights: Any, gate_weight: Any, gate_bias: Any) -> Any:
    """Token features (tokens, H) whose router logits have a gap of at least 0.5 between places k and k+1.

    Each token chooses ``top_k`` distinct experts with odds ``weights`` (E,). The features are ``draw.values`` moved by the
    least-norm correction that gives ``features @ gate_weight.T + gate_bias`` its planned values: chosen experts in
    [0.5, 2), others in [-2, 0). Needs E <= H. Rounding to bfloat16 moves a logit by about 0.01.
    """
    import torch

    experts, hidden = gate_weight.shape
    odds = torch.log(weights) - torch.log(-torch.log(draw.uniform(1e-6, 1.0, tokens, experts, dtype=torch.float32)))
    chosen = torch.topk(odds, top_k, dim=1).indices  # the Gumbel trick: k draws without replacement
    planned = draw.uniform(-2.0, 0.0, tokens, experts, dtype=torch.float32)
    planned.scatter_(1, chosen, draw.uniform(0.5, 2.0, tokens, top_k, dtype=torch.float32))

    features = draw.values(tokens, hidden, dtype=torch.float32)
    gate = gate_weight.float()
    logits = features @ gate.t() + (0.0 if gate_bias is None else gate_bias.float())
    return (features + (planned - logits) @ torch.linalg.pinv(gate).t()).to(draw.dtype)


def match_gain(head_dim: int, keys: int) -> float:
    """c such that a query ``c * key`` gives its key about as much weight as all ``keys`` other unit-normal keys together.

    The matching score is c*sqrt(D), the others' log-sum about log(keys) + c*c/2; the smaller root of their equality plus one.
    """
    return math.sqrt(head_dim) - math.sqrt(max(0.0, head_dim - 2.0 * (math.log(max(keys, 1)) + 1.0)))


def matches(draw: Draw, batch: int, first: int, count: int, total: int, heads: int, causal: bool) -> Any:
    """For each query position first .. first+count-1 and head, a random key position it may see: int64 (batch, count, heads).

    Uniform over 0 .. total-1, or over 0 .. own position when ``causal``: near and far shards alike.
    """
    import torch

    where = draw.uniform(0.0, 1.0, batch, count, heads, dtype=torch.float32)
    limit = torch.full((count,), total, device=draw.device, dtype=torch.int64)
    if causal:
        limit = torch.arange(first + 1, first + count + 1, device=draw.device)
    limit = limit[None, :, None]
    return torch.minimum((where * limit).long(), limit - 1)


def matching_queries(draw: Draw, keys: Any, first: int, count: int, causal: bool, scale: float, boost: float = 1.0) -> Any:
    """Queries (B, count, H, D) at positions ``first`` on, each a noisy multiple of one key out of ``keys`` (B, total, H, D).

    scale: the softmax scale the attention will use; the multiple makes up for it. boost: multiplies the queries; large values
    make scores whose exponential overflows.
    """
    batch, total, heads, dim = keys.shape
    target = matches(draw, batch, first, count, total, heads, causal)
    found = keys.gather(1, target[..., None].expand(-1, -1, -1, dim))
    gain = boost * match_gain(dim, total) / (scale * math.sqrt(dim))
    return ((found.float() + draw.randn(batch, count, heads, dim, scale=0.3).float()) * gain).to(draw.dtype)


def moe_layer(
    ctx: Context, tokens: int, hidden: int, inner: int, experts: int, top_k: int, group_size: int, expert: Draw
) -> list[Any]:
    """hidden_states, gate_weight, gate_bias, gate_proj, up_proj, down_proj of an expert-parallel layer on this rank.

    The router is equal on all ranks, popularity follows Zipf's law, the expert's weights come from ``expert``. Ragged trial:
    fewer tokens, another number on each rank, and no gate bias. Edge trial: all tokens of all ranks choose the same ``top_k``
    neighbouring experts, the others get none, and the rank of each group that holds the first of them has no tokens of its
    own. Outputs are of order one.
    """
    bias = None
    gate = ctx.shared.randn(experts, hidden, scale=2.0 / math.sqrt(hidden))
    odds = popularity(ctx.shared, experts)
    if ctx.variant == "ragged":
        tokens = max(1, tokens - 3 - ctx.rank)
    else:
        bias = ctx.shared.randn(experts, scale=0.5)
    if ctx.variant == "edge":
        first = top_k * ctx.shared.integer(0, experts // top_k)
        odds = popularity(ctx.shared, experts, empty=[x for x in range(experts) if not first <= x < first + top_k])
        tokens = 0 if ctx.rank % group_size == first * group_size // experts else tokens
    features = routed_tokens(ctx.own, tokens, top_k, odds, gate, bias)
    layers = [linear(expert, hidden, inner), linear(expert, hidden, inner), linear(expert, inner, hidden, gain=4.0)]
    return [features, gate, bias, *layers]


def delayed_scaling(ctx: Context, count: int, entries: int) -> tuple[Any, Any]:
    """(values (count,), amax history (entries,) bfloat16, newest last) for rounding to FP8 E4M3 with delayed scaling.

    Heavy-tailed values, scaled differently on each rank. The history is of one of three kinds, by rank and trial: a spike that
    stays, so high that the values fall among the FP8 subnormals and rounding changes them by several per cent (at least one
    rank, and those ranks have the largest values); a spike in the oldest slot, which rolls out; all below the current maximum.
    Integers trial: scales are powers of two, so that nothing is rounded. Edge trial: one rank has only zeros, history too.
    """
    import torch

    spiked = ctx.shared.integer(0, min(3, ctx.world_size))
    stays, rolls_out = (ctx.rank - spiked) % 3 == 0, (ctx.rank + ctx.trial) % 2 == 0
    values = ctx.own.values(count, dtype=torch.float32)
    slot = ctx.own.integer(1, entries)
    history = ctx.own.uniform(0.05, 0.9, entries, dtype=torch.float32)
    if ctx.variant == "integers":
        history[slot] = 448.0 * 2.0 ** (ctx.rank % 3 - 1)
        history[0] = 9999.0 if rolls_out else history[0]
    elif ctx.variant == "edge" and ctx.rank == (spiked + 1) % ctx.world_size:
        values, history = torch.zeros_like(values), torch.zeros_like(history)
    else:
        values *= torch.exp(ctx.own.randn(count).float()) * (ctx.own.real(2.0, 4.0) if stays else ctx.own.real(0.3, 2.0))
        history *= values.abs().max()
        if stays:
            subnormal_steps = ctx.own.real(1.5, 4.0)  # what the values' RMS is to be, in steps of 2**-9 after scaling
            history[slot] = values.square().mean().sqrt() * 448.0 * 512.0 / subnormal_steps
        elif rolls_out:
            history[0] = 50.0 * values.abs().max()
    return values.to(ctx.dtype), history.to(torch.bfloat16)
