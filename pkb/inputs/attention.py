"""Queries, keys and projections whose attention has clear matches, near and far."""

from __future__ import annotations

import math
from typing import Any

from pkb.draw import Draw
from pkb.problem import Context


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


def attention_mode(ctx: Context, head_dim: int) -> tuple[bool, float | None]:
    """(causal, softmax_scale) of this trial: both values of causal occur, and both None and an explicit scale."""
    explicit = ctx.variant in ("wide", "ragged")
    scale = ctx.shared.real(0.5, 1.5) / math.sqrt(head_dim) if explicit else None
    return ctx.variant not in ("integers", "ragged"), scale


def matching_hidden(ctx: Context, batch: int, count: int, hidden: int, shards: int, shard: int, causal: bool) -> Any:
    """Hidden states (batch, count, hidden) of one of ``shards`` sequence shards, equal on all ranks that ask for that shard.

    The first half of a position's features is its own random code, the second half the code of a random position it may see,
    so that ``matching_projections`` makes its query match that position's key.
    """
    import torch

    half = hidden // 2
    codes = [ctx.stream(f"codes of shard {i}").randn(batch, count, half) for i in range(shards)]
    target = matches(ctx.stream(f"targets of shard {shard}"), batch, shard * count, count, shards * count, 1, causal)
    wanted = torch.cat(codes, dim=1).gather(1, target.expand(-1, -1, half))
    return torch.cat([codes[shard], wanted], dim=-1)


def matching_projections(draw: Draw, heads: int, dim: int, hidden: int, keys: int, scale: float, boost: float = 1.0) -> Any:
    """w_qkv (3 * heads * dim, hidden) for ``matching_hidden``: queries read the second half of the features as keys the first.

    keys: length of the whole sequence. scale: the softmax scale that the attention will use. boost: see matching_queries.
    """
    import torch

    half = hidden // 2
    gain = boost * match_gain(dim, keys) / (scale * math.sqrt(dim))
    code = draw.randn(heads * dim, half, scale=1 / math.sqrt(half))
    query = torch.cat([draw.randn(heads * dim, half, scale=0.1 / math.sqrt(half)), code], dim=1) * gain
    key = torch.cat([code, draw.randn(heads * dim, half, scale=0.1 / math.sqrt(half))], dim=1)
    return torch.cat([query, key, mixing(draw, heads * dim, hidden)])


def mixing(draw: Draw, n_out: int, n_in: int, gain: float = 1.0) -> Any:
    """A dense (n_out, n_in) weight that keeps the RMS of normal data; of large dynamic range in the wide trial."""
    fill = draw.values if draw.variant == "wide" else draw.randn
    return fill(n_out, n_in, scale=gain / math.sqrt(n_in))
