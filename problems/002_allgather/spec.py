"""Problem 002: all-gather. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor,): (M, N), random by rank and trial; odd element counts (no multiple of 16 bytes) in two of the trials."""
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7
    return (ctx.own.values(rows, cols),)


def cost(shape: Shape) -> Cost:
    """S = M N b bytes per shard; every rank receives W - 1 shards, however they are sent."""
    world = shape.world_size
    nbytes = shape.size.M * shape.size.N * shape.element_size
    total = (world + 1) * nbytes
    return Cost(sent_bytes=(world - 1) * nbytes, flops=0, memory_bytes=total, footprint_bytes=total)


PROBLEM = Problem(
    title="All-gather of equal shards into one stacked tensor",
    category="collective primitive",
    source="generic (all-gather into a single output tensor)",
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
        "outputs are compared bit for bit",
    ),
)
