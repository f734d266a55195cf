"""Problem 036: Ulysses exchange before attention. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """Rank-dependent shards (B, T, h, d), with a padded global sequence in half of the trials.

    ragged: the padding (large values, so that it shows) is to be cut off; odd sizes. wide: it stays, because the true length
    is a multiple of the group size. edge: one row per rank in a (T, h, d) layout.
    """
    s, world_size = ctx.size, ctx.world_size
    heads = s.h if ctx.variant == "plain" or s.h >= 2 * world_size else 4 * world_size
    if ctx.variant == "edge":
        return ctx.own.values(1, heads, s.d), 0, 1, None, 0
    batch, length, width = (s.B + 1, s.T + 1, s.d - 3) if ctx.variant == "ragged" else (s.B, s.T, s.d)
    x = ctx.own.values(batch, length, heads, width)
    if ctx.variant in ("plain", "integers") or length == 1:
        return x, 1, 2, None, 0
    if ctx.variant == "wide":
        missing = world_size  # as many padded rows as ranks, in all
    else:
        missing = ctx.shared.integer(1, length)
        missing -= missing % world_size == 0
    if ctx.rank == world_size - 1:
        x[:, max(0, length - missing) :] = 1000.0
    return x, 1, 2, None, world_size * length - missing


def admissible(shape: Shape) -> str | None:
    if shape.size.h % shape.world_size:
        return f"h={shape.size.h} heads cannot be shared equally by {shape.world_size} ranks; set size.h to a multiple"
    return None


def cost(shape: Shape) -> Cost:
    """Equal all-to-all of B T h d elements."""
    s = shape.size
    nbytes = s.B * s.T * s.h * s.d * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    # Input, packed pieces, received pieces, result.
    return Cost(sent_bytes=share * nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=4 * nbytes)


PROBLEM = Problem(
    title="Ulysses exchange before attention: from sequence shards with all heads to full sequence with a head shard",
    category="context parallel",
    source="DeepSpeed-Ulysses as implemented in VeOmni",
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
        "one trial cuts off padding, one has a padded length that must not be cut; the original never passes a length",
        "trials other than the first have several heads per rank; one has odd sizes, one the layout (T, h, d)",
    ),
    tags=("all-to-all",),
)
