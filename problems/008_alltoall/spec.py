"""Problem 008: all-to-all. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor,): (W, M, N), random by rank and trial; slices of odd element count in two of the trials."""
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7
    return (ctx.own.values(ctx.world_size, rows, cols),)


def cost(shape: Shape) -> Cost:
    """S = M N b bytes per slice: W - 1 slices leave every rank; W are read and W written (one is a local copy)."""
    world = shape.world_size
    nbytes = shape.size.M * shape.size.N * shape.element_size
    total = 2 * world * nbytes
    return Cost(sent_bytes=(world - 1) * nbytes, flops=0, memory_bytes=total, footprint_bytes=total)


PROBLEM = Problem(
    title="Equal-split all-to-all along dimension 0",
    category="collective primitive",
    source="generic",
    sizes={
        "smoke": {"M": 32, "N": 96},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 4096, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "inputs are random and differ by position, rank and trial; the original's are constants that follow from the rank",
        "one trial has an odd number of elements, one fewer than a vector holds",
        "outputs are compared bit for bit",
    ),
)
