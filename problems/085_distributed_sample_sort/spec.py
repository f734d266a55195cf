"""Problem 085: distributed sample sort. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

EDGES = ("equal", "nothing", "reversed", "sorted")  # what successive edge trials draw


def edge_kind(ctx: Context) -> str:
    return EDGES[ctx.trial // 5 % len(EDGES)]


def shard_sizes(ctx: Context) -> list[int]:
    """n_r of all ranks: within a quarter of n, n on average; very uneven with empty ranks in ragged and edge trials."""
    import torch

    n, world_size = ctx.size.n, ctx.world_size
    draw = ctx.stream("sizes")
    if ctx.variant == "edge" and edge_kind(ctx) == "nothing":
        return [0] * world_size
    if ctx.variant in ("ragged", "edge"):  # one rank without data, one with a single value, not a multiple of the ranks
        sizes = [0, *draw.split(n * world_size - 1, world_size - 1)]
        sizes[-1] += 1 - (sum(sizes) + 1) % world_size
        if world_size > 2:
            sizes[1], sizes[2] = 1, sizes[2] + sizes[1]
        order = draw.permutation(world_size).tolist()
        return [sizes[i] for i in order]
    spread = draw.uniform(-0.125, 0.125, world_size, dtype=torch.float64)
    return [round(n * (1 + float(x))) for x in 2 * (spread - spread.mean())]


def draw_values(ctx: Context, count: int) -> Any:
    """A normal and a heavy tail, a tenth of duplicates, shifted a little by rank; nine tenths of duplicates in integers."""
    import torch

    if ctx.variant == "integers":
        return ctx.own.integers(-8, 9, count).to(ctx.dtype)
    if ctx.variant == "edge" and edge_kind(ctx) == "equal":
        return ctx.shared.randn(1).repeat(count)
    tail = 3.0 if ctx.variant == "wide" else 1.0
    x = ctx.own.randn(count, dtype=torch.float32)
    heavy = ctx.own.integers(0, 4, count) == 0
    x = torch.where(heavy, x * torch.exp(tail * ctx.own.randn(count, dtype=torch.float32)), x)
    x = x + 0.3 * ctx.own.randn(1, dtype=torch.float32)
    duplicates = ctx.shared.randn(16, dtype=torch.float32)[ctx.own.integers(0, 16, count)]
    x = torch.where(ctx.own.integers(0, 10, count) == 0, duplicates, x)
    if ctx.variant == "edge":  # disjoint ranges, in the order of the ranks or against it
        sign = 1 if edge_kind(ctx) == "sorted" else -1
        x = x.clamp(-3, 3).sort(descending=sign < 0).values + sign * 8 * ctx.rank
    return x.to(ctx.dtype) + 0.0  # no negative zero: it compares equal to zero, and bits are compared


def make_inputs(ctx: Context) -> tuple:
    """(local_shard,): the order of ranks says nothing about the order of values, but in two of the edge trials."""
    return (draw_values(ctx, shard_sizes(ctx)[ctx.rank]),)


def cost(shape: Shape) -> Cost:
    """Every value that does not stay leaves once; one read and one write; comparisons are not floating-point operations."""
    n, b, world_size = shape.size.n, shape.element_size, shape.world_size
    return Cost(
        sent_bytes=(world_size - 1) / world_size * n * b,
        flops=0,
        memory_bytes=2 * n * b,
        footprint_bytes=1.3 * n * (6 * b + 4 * 8),
    )


PROBLEM = Problem(
    title="Global sort of a vector spread over the ranks, returned in balanced contiguous slices",
    category="other",
    source="generic (parallel sorting by regular sampling)",
    sizes={
        "smoke": {"n": 320},
        "default": {"n": 128},
        "production": {"n": 1 << 26},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    oracle="reference",
    deviations=(
        "all ranks draw from overlapping distributions; the original's ranks hold disjoint descending ranges, so that one swap "
        "of sorted shards is the answer",
        "values are compared exactly; the original's tolerance lets neighbours change places",
        "shard sizes are uneven, with empty ranks, single values, all ranks empty, and totals that W does not divide",
        "trials include all values equal, nine tenths of duplicates, and sorted and reversed ranks",
    ),
    tags=("all-to-all", "all-gather", "sort"),
)
