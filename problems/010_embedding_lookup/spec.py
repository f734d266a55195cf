"""Problem 010: row-sharded embedding lookup. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch


def _skewed(ctx: Context, count: int, total: int) -> torch.Tensor:
    """``count`` row numbers in [0, total), half of them uniform, half log-uniform (Zipf's law: low rows are hot)."""
    import torch

    uniform = ctx.own.integers(0, total, count)
    zipf = torch.exp(ctx.own.uniform(0, math.log(total), count, dtype=torch.float64)).long() - 1
    zipf = zipf.clamp(0, total - 1)
    return torch.where(ctx.own.integers(0, 2, count) == 0, uniform, zipf)


def _edge_indices(ctx: Context, count: int, total: int) -> torch.Tensor:
    """By rank, in turn: no request at all; one remote row many times; own rows only; every row of one peer."""
    import torch

    rows = ctx.size.V
    turn = (ctx.rank + ctx.stream("turn").integer(0, ctx.world_size)) % ctx.world_size
    peer = (ctx.rank + 1) % ctx.world_size
    if turn == 0:
        return ctx.own.integers(0, total, 0)
    if turn == 1:
        return torch.full((count,), peer * rows + ctx.own.integer(0, rows), device=ctx.device)
    if turn == 2:
        return ctx.rank * rows + ctx.own.integers(0, rows, count)
    return peer * rows + ctx.own.permutation(rows)


def make_inputs(ctx: Context) -> tuple:
    """(indices, local_shard): skewed requests, as many as nominal in plain trials and a different number per rank in others."""
    rows, width, count = ctx.size.V, ctx.size.D, ctx.size.n
    total = rows * ctx.world_size
    if ctx.variant == "ragged":
        width = max(1, width - 3)
    shard = ctx.own.values(rows, width)
    if ctx.variant == "edge":
        return _edge_indices(ctx, count, total), shard
    if ctx.variant != "plain":
        count = ctx.stream("counts").split(count * ctx.world_size, ctx.world_size, least=1)[ctx.rank]
    return _skewed(ctx, count, total), shard


def cost(shape: Shape) -> Cost:
    """Rows that must cross: the distinct remote ones among the uniform half of the requests, on average over ranks.

    Hot rows asked for twice need to be fetched once only, so repeated requests are not counted.
    """
    total, row = shape.size.V * shape.world_size, shape.size.D * shape.element_size
    distinct = total * -math.expm1(-shape.size.n / 2 / total)
    remote = distinct * (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=remote * row,
        flops=0,
        memory_bytes=distinct * row + shape.size.n * (row + 8),
        # the shard, the reply buffer (the owner of the hot rows serves up to about W/2 times the mean) and the output
        footprint_bytes=shape.size.V * row + (1 + shape.world_size) * shape.size.n * (row + 24),
    )


PROBLEM = Problem(
    title="Lookup in a row-sharded embedding table by request/reply all-to-all",
    category="tensor parallel",
    source="generic (row-wise sharded embedding, TorchRec style)",
    sizes={
        "smoke": {"V": 64, "D": 32, "n": 48},
        "default": {"V": 1024, "D": 1024, "n": 1024},
        "production": {"V": 32768, "D": 4096, "n": 16384},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "requests are half Zipf-distributed (rank 0 owns the hot rows); the original's are uniform, all counts near equal",
        "the number of requests differs by rank in all trials but the plain one and can be zero; the original's equals V",
        "one trial has rows of odd width",
        "rows are compared bit for bit",
    ),
)
