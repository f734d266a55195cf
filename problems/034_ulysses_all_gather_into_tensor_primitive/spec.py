"""Problem 034: all-gather along dimension 0. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A 2-D shard; 3-D in the integers trial, 1-D with fewer elements than a vector in the edge trial.

    In the wide trial the shard is a transposed view and the group, where there are ranks enough, one of two halves of the
    ranks (those of equal parity). The ragged trial has odd sizes.
    """
    m, n, world_size = ctx.size.M, ctx.size.N, ctx.world_size
    if ctx.variant == "integers":
        return ctx.own.values(m, 3, n // 4), None
    if ctx.variant == "wide":
        group = None
        if world_size >= 4 and world_size % 2 == 0:
            group = ctx.group(range(ctx.rank % 2, world_size, 2))
        return ctx.own.values(n, m).T, group
    if ctx.variant == "ragged":
        return ctx.own.values(m - 1, n - 3), None
    if ctx.variant == "edge":
        return ctx.own.values(ctx.shared.integer(1, 8)), None
    return ctx.own.values(m, n), None


def cost(shape: Shape) -> Cost:
    """Each rank receives, and with direct stores sends, W - 1 shards of n = M N elements."""
    nbytes = shape.size.M * shape.size.N * shape.element_size
    world_size = shape.world_size
    return Cost(
        sent_bytes=(world_size - 1) * nbytes,
        flops=0,
        memory_bytes=(1 + world_size) * nbytes,
        footprint_bytes=(2 + world_size) * nbytes,
    )


PROBLEM = Problem(
    title="Equal-size all-gather along dimension 0 into one tensor",
    category="context parallel",
    source="Ulysses sequence-parallel helper of VeOmni",
    sizes={
        "smoke": {"M": 48, "N": 40},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 8192, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=("trials add 1-D and 3-D shards, odd sizes, a shard that is not contiguous, and a sub-group",),
    tags=("all-gather",),
)
