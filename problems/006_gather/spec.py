"""Problem 006: gather. The harness's side: sizes, inputs, tolerance, cost."""

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
    """S = M N b bytes per tensor; of the destination, the busiest rank: W - 1 tensors arrive over its link, as many as leave
    the other ranks together. It reads its own and writes W; the reference holds them twice, apart and stacked.
    """
    world = shape.world_size
    nbytes = shape.size.M * shape.size.N * shape.element_size
    return Cost(
        sent_bytes=(world - 1) * nbytes,
        flops=0,
        memory_bytes=(world + 1) * nbytes,
        footprint_bytes=(2 * world + 1) * nbytes,
    )


PROBLEM = Problem(
    title="Gather of equal tensors to one rank, stacked",
    category="collective primitive",
    source="generic",
    sizes={
        "smoke": {"M": 64, "N": 96},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 4096, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "inputs are random and differ by position, rank and trial; the original's are constants that follow from the rank",
        "one trial has an odd number of elements, one fewer than a vector holds",
        "dst is passed and varies with the trial; the original leaves it at 0",
        "outputs are compared bit for bit",
    ),
)
