"""Problem 005: scatter. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor, src): (W, M, N) chunks on the source, which moves on with the trial; unrelated (M, N) data elsewhere."""
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7
    src = ctx.trial % ctx.world_size
    if ctx.rank == src:
        return (ctx.own.values(ctx.world_size, rows, cols), src)
    return (ctx.own.values(rows, cols), src)


def cost(shape: Shape) -> Cost:
    """S = M N b bytes per chunk; of the source, the busiest rank: it sends W - 1 chunks, reads W and writes its own."""
    world = shape.world_size
    nbytes = shape.size.M * shape.size.N * shape.element_size
    total = (world + 1) * nbytes
    return Cost(sent_bytes=(world - 1) * nbytes, flops=0, memory_bytes=total, footprint_bytes=total)


PROBLEM = Problem(
    title="Scatter of W equal chunks from one source rank",
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
        "src is passed and varies with the trial; the original leaves it at 0",
        "receivers' templates hold random data, not zeros",
        "outputs are compared bit for bit",
    ),
)
