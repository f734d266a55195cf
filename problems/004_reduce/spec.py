"""Problem 004: reduce. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor, dst): (M, N), random by rank and trial, and the destination, which moves on with the trial."""
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7
    return (ctx.own.values(rows, cols), ctx.trial % ctx.world_size)


def cost(shape: Shape) -> Cost:
    """S = M N b bytes: every rank but the destination sends its addend once; additions spread evenly over the ranks."""
    elements = shape.size.M * shape.size.N
    nbytes = elements * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(sent_bytes=nbytes, flops=share * elements, memory_bytes=2 * nbytes, footprint_bytes=3 * nbytes)


PROBLEM = Problem(
    title="Sum-reduce of one tensor to a single destination rank",
    category="collective primitive",
    source="generic",
    sizes={
        "smoke": {"M": 64, "N": 96},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 16384, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(elementwise=True),
    deviations=(
        "inputs are random and differ by position, rank and trial; the original's are constants that follow from the rank",
        "one trial has an odd number of elements, one fewer than a vector holds",
        "dst varies with the trial; the original's is always 0",
        "ranks other than dst must return a copy of their own input, which a bare reduce leaves undefined",
    ),
)
