"""Problem 069: rank of each positive edge among its negatives. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape

SATURATED = 24.0  # sigmoid rounds to exactly 1 here, in every dtype up to float32


def num_positives(ctx: Context) -> list[int]:
    """p_r of all ranks, p on average: moderately uneven, or anything from 0 up in the wide, ragged and edge trials."""
    import torch

    p, world_size = ctx.size.p, ctx.world_size
    if ctx.variant == "edge":  # one rank scored nothing
        return [0, *ctx.shared.split(p * world_size, world_size - 1, 1)]
    if ctx.variant in ("wide", "ragged"):
        return ctx.shared.split(p * world_size - (3 if ctx.variant == "ragged" else 0), world_size)
    spread = ctx.shared.uniform(-0.25, 0.25, world_size, dtype=torch.float64)
    return [round(p * (1 + float(x))) for x in spread - spread.mean()]


def on_grid(ctx: Context, scores: Any) -> Any:
    """Scores in (-8, 8) on a grid so coarse that equal scores tie and different ones round alike in any implementation.

    Rank is an integer compared exactly, and one unit in the last place of a sigmoid moves it: on this grid no sigmoid lies
    so near to a rounding boundary that an honest implementation could fall on its other side.
    """
    import torch

    step = 1 / 256 if ctx.dtype == torch.float32 else 1 / 16
    return ((scores.float().clamp(-7.9, 7.9) / step).round() * step).to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(local_pos_scores, local_neg_scores): positives about two higher, some saturated, some equal to negatives."""
    import torch

    p = num_positives(ctx)[ctx.rank]
    k = ctx.size.k - 3 if ctx.variant == "ragged" else ctx.size.k
    spread = 2.0 if ctx.variant == "wide" else 1.0
    margin = ctx.own.uniform(0.0, 4.0, p, dtype=torch.float32)
    positives = on_grid(ctx, ctx.own.randn(p, scale=spread, dtype=torch.float32) + margin)
    negatives = on_grid(ctx, ctx.own.randn(p, k, scale=spread, dtype=torch.float32))
    kind = ctx.own.integers(0, 8, p)
    tied = kind == 0
    negatives[tied, : k // 4] = positives[tied, None]
    negatives[kind <= 2, k // 2 : k // 2 + k // 8] = SATURATED
    positives[kind == 1] = SATURATED  # ties with the saturated negatives
    positives[kind == 3] = -SATURATED  # below every negative
    return positives, negatives


def cost(shape: Shape) -> Cost:
    """Rank locally, gather one 32-bit integer per positive; footprint of the form that gathers and sorts all scores."""
    p, k, b, world_size = shape.size.p, shape.size.k, shape.element_size, shape.world_size
    rows = p * world_size
    return Cost(
        sent_bytes=4 * p * (world_size - 1),
        flops=p * (k + 1) * 2,
        memory_bytes=p * (k + 1) * b + 8 * rows,
        footprint_bytes=rows * (k + 1) * (5 * b + 2 * 8 + 2),
    )


PROBLEM = Problem(
    title="Link-prediction evaluation: rank of each positive among its negatives, over score blocks of unequal length",
    category="graph parallel",
    source="GraphStorm / DGL (link-prediction ranking)",
    sizes={
        "smoke": {"p": 17, "k": 100},
        "default": {"p": 129, "k": 1000},
        "production": {"p": 16384, "k": 1000},
    },
    make_inputs=make_inputs,
    cost=cost,
    oracle="reference",
    deviations=(
        "ties are defined: the positive wins (stable descending sort); the original's sort leaves them open",
        "positives score about two higher than negatives, with saturated scores and exact ties; the original draws both alike",
        "scores lie on a grid, so that every implementation's rounded sigmoids tie alike",
        "the number of positives varies strongly by rank and may be 0; the original's varies by rank mod 3",
    ),
    tags=("all-gather",),
)
