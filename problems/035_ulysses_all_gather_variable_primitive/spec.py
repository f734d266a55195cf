"""Problem 035: all-gather of unequal shards. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A shard whose size along the joined dimension differs by rank and trial: within [M/2, 3M/2], M on average.

    Rows of a matrix in the plain and integers trials; the middle dimension of (B, S, H) data in the wide (by a negative
    index) and ragged trials, the latter with odd widths, and there one rank has a single row. In the edge trial one rank has
    none. In the wide trial the group, where there are ranks enough, is one of two halves of the ranks.
    """
    n, world_size = ctx.size.N, ctx.world_size
    sizes = uneven_sizes(ctx)
    special = ctx.shared.integer(0, world_size)
    if ctx.variant == "wide":
        group = None
        if world_size >= 4 and world_size % 2 == 0:
            group = ctx.group(range(ctx.rank % 2, world_size, 2))
        return ctx.own.values(2, sizes[ctx.rank], n // 2), -2, group
    if ctx.variant == "ragged":
        sizes[special] = 1
        return ctx.own.values(3, sizes[ctx.rank], n // 3), 1, None
    if ctx.variant == "edge":
        sizes[special] = 0
        return ctx.own.values(sizes[ctx.rank], n - 1), 0, None
    return ctx.own.values(sizes[ctx.rank], n), 0, None


def uneven_sizes(ctx: Context) -> list[int]:
    """One size per rank, equal on all ranks: pairs M + d and M - d with a random d, so that the total is always W M."""
    m, world_size = ctx.size.M, ctx.world_size
    sizes = [m] * world_size
    order = ctx.shared.permutation(world_size).tolist()
    for first, second in zip(order[::2], order[1::2], strict=False):
        surplus = ctx.shared.integer(1, m // 2 + 1)
        sizes[first] += surplus
        sizes[second] -= surplus
    return sizes


def cost(shape: Shape) -> Cost:
    """Shards of M N elements on average: each rank sends its own to all others; shapes are a few bytes."""
    nbytes = shape.size.M * shape.size.N * shape.element_size
    world_size = shape.world_size
    return Cost(
        sent_bytes=(world_size - 1) * (nbytes + 16),
        flops=0,
        memory_bytes=(1 + world_size) * nbytes,
        footprint_bytes=1.5 * (1 + 2 * world_size) * nbytes,  # all shards may be the largest; buffers and their join
    )


PROBLEM = Problem(
    title="All-gather of shards of unequal size, joined along a chosen dimension",
    category="context parallel",
    source="Ulysses sequence-parallel helper of VeOmni (uneven gather)",
    sizes={
        "smoke": {"M": 40, "N": 40},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 8192, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "shards differ in size by rank and trial, down to one row and none; the original's are all equal",
        "trials add a join along the middle dimension, a negative dimension, odd widths and a sub-group",
    ),
    tags=("all-gather",),
)
