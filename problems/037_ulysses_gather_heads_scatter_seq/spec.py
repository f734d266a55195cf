"""Problem 037: Ulysses exchange after attention. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """Rank-dependent tensors (B, T, h, d).

    ragged: T is one more than a multiple of the world size, and the sizes are odd. edge: fewer rows than ranks, so that some
    receive only padding, in a (T, h, d) layout with three heads. wide: one row less than a multiple.
    """
    s, world_size = ctx.size, ctx.world_size
    whole = s.T // world_size * world_size
    if ctx.variant == "edge":
        return ctx.own.values(max(1, world_size - 1), 3, s.d), 0, 1, None
    if ctx.variant == "ragged":
        return ctx.own.values(s.B + 1, whole + 1, s.h + 1, s.d - 3), 1, 2, None
    if ctx.variant == "wide":
        return ctx.own.values(s.B, max(1, whole - 1), s.h, s.d), 1, 2, None
    return ctx.own.values(s.B, s.T, s.h, s.d), 1, 2, None


def cost(shape: Shape) -> Cost:
    """Equal all-to-all of B T h d elements."""
    s = shape.size
    nbytes = s.B * s.T * s.h * s.d * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    # Input, padded input, packed pieces, received pieces, result.
    return Cost(sent_bytes=share * nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=5 * nbytes)


PROBLEM = Problem(
    title="Ulysses exchange after attention: from full sequence with a head shard to sequence shards with all heads",
    category="context parallel",
    source="DeepSpeed-Ulysses as implemented in VeOmni",
    sizes={
        "smoke": {"B": 2, "T": 12, "h": 2, "d": 16},
        "default": {"B": 16, "T": 16, "h": 8, "d": 64},
        "production": {"B": 1, "T": 131072, "h": 4, "d": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "trials have sequences that need padding, down to fewer rows than ranks; the original's always divide",
        "one trial has odd sizes, one the layout (T, h, d); any world size is admitted",
    ),
    tags=("all-to-all",),
)
