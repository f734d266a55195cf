"""Problem 033: all-to-all over two dimensions. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A 2-D tensor and the pair (0, 1) in the plain and integers trials, 4-D tensors and other pairs in the rest.

    In the wide trial the group is one of two halves of the ranks (those of equal parity), where there are enough.
    """
    m, n, world_size = ctx.size.M, ctx.size.N, ctx.world_size
    width = max(1, n // (2 * world_size))
    rows = max(1, m // 4)
    if ctx.variant == "wide":  # after attention: heads are gathered, the sequence is scattered; negative dimension
        group = None
        if world_size >= 4 and world_size % 2 == 0:
            group = ctx.group(range(ctx.rank % 2, world_size, 2))
        return ctx.own.values(2, world_size * rows, 2, width), -3, 2, group
    if ctx.variant == "ragged":  # before attention: (B, S, h, d) with an odd S and d
        return ctx.own.values(1, rows + 1, 3 * world_size, width | 1), 2, 1, None
    if ctx.variant == "edge":  # a plain all-to-all of a tiny dimension, or from the first to the third dimension
        if ctx.shared.integer(0, 2):
            return ctx.own.values(3, world_size, 5), 1, 1, None
        return ctx.own.values(2 * world_size, 3, 1, 7), 0, 2, None
    return ctx.own.values(m, n), 0, 1, None


def admissible(shape: Shape) -> str | None:
    if shape.size.M % shape.world_size:
        return f"M={shape.size.M} rows cannot be cut into {shape.world_size} equal pieces; set size.M to a multiple"
    return None


def cost(shape: Shape) -> Cost:
    """Equal all-to-all of M N elements."""
    nbytes = shape.size.M * shape.size.N * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    # Input, packed pieces, received pieces, result.
    return Cost(sent_bytes=share * nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=4 * nbytes)


PROBLEM = Problem(
    title="All-to-all that splits one tensor dimension and concatenates along another",
    category="context parallel",
    source="DeepSpeed-Ulysses exchange as implemented in VeOmni",
    sizes={
        "smoke": {"M": 48, "N": 40},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 32768, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    deviations=(
        "trials add 3-D and 4-D tensors, odd inner sizes, other dimension pairs, negative and equal dimensions, a sub-group",
    ),
    tags=("all-to-all",),
)
