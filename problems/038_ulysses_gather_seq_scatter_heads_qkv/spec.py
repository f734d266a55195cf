"""Problem 038: Ulysses exchange of fused QKV. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """Rank-dependent shards (B, T, 3 h d).

    integers: the result keeps its (3, P / (3 W)) tail. wide: a padded length that must not be cut, being a multiple of the
    group size. ragged: padding (large values, so that it shows) that must be cut, and odd sizes. edge: one row per rank in a
    (T, B, 3 h d) layout, without the flattening.
    """
    s, world_size = ctx.size, ctx.world_size
    heads = s.h if ctx.variant == "plain" or s.h >= 2 * world_size else 4 * world_size
    if ctx.variant == "edge":
        return ctx.own.values(1, 3, 3 * heads * s.d), 0, None, 0, False
    batch, length, width = (s.B + 1, s.T + 1, s.d - 3) if ctx.variant == "ragged" else (s.B, s.T, s.d)
    x = ctx.own.values(batch, length, 3 * heads * width)
    if ctx.variant in ("plain", "integers") or length == 1:
        return x, 1, None, None, ctx.variant == "plain"
    if ctx.variant == "wide":
        missing = world_size  # as many padded rows as ranks, in all
    else:
        missing = ctx.shared.integer(1, length)
        missing -= missing % world_size == 0
    if ctx.rank == world_size - 1:
        x[:, max(0, length - missing) :] = 1000.0
    return x, 1, None, world_size * length - missing, True


def admissible(shape: Shape) -> str | None:
    if shape.size.h % shape.world_size:
        return f"h={shape.size.h} heads cannot be shared equally by {shape.world_size} ranks; set size.h to a multiple"
    return None


def cost(shape: Shape) -> Cost:
    """Equal all-to-all of 3 B T h d elements."""
    s = shape.size
    nbytes = 3 * s.B * s.T * s.h * s.d * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    # Input, packed pieces, received pieces, result.
    return Cost(sent_bytes=share * nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=4 * nbytes)


PROBLEM = Problem(
    title="Ulysses exchange of a fused QKV projection",
    category="context parallel",
    source="DeepSpeed-Ulysses as implemented in VeOmni (fused-QKV variant)",
    sizes={
        "smoke": {"B": 2, "T": 6, "h": 12, "d": 16},
        "default": {"B": 16, "T": 16, "h": 8, "d": 64},
        "production": {"B": 1, "T": 16384, "h": 32, "d": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    deviations=(
        "one trial cuts off padding, one has a padded length that must not be cut, two keep the split last dimension; "
        "the original does none of these",
        "trials other than the first have several heads per rank; one has odd sizes, one the layout (T, B, P)",
    ),
    tags=("all-to-all",),
)
