"""Problem 003: broadcast. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor, src): (M, N) and the source, which moves on with the trial; unrelated data on the other ranks.

    In the edge trial a few elements hold infinities and a negative zero: the payload is bits, not numbers.
    """
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7
    tensor = ctx.own.values(rows, cols)
    if ctx.variant == "edge":
        special = tensor.new_tensor([float("inf"), float("-inf"), -0.0])
        tensor[0, ctx.own.permutation(cols)[:3]] = special
    return (tensor, ctx.trial % ctx.world_size)


def cost(shape: Shape) -> Cost:
    """S = M N b bytes: the source sends them at least once (switch multicast, or the head of a chain)."""
    nbytes = shape.size.M * shape.size.N * shape.element_size
    return Cost(sent_bytes=nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=2 * nbytes)


PROBLEM = Problem(
    title="Out-of-place broadcast of one tensor from a source rank",
    category="collective primitive",
    source="generic",
    sizes={
        "smoke": {"M": 64, "N": 96},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 16384, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "inputs are random and differ by position, rank and trial; the original's are constants that follow from the rank",
        "src is passed and varies with the trial; the original leaves it at 0",
        "outputs are compared bit for bit, and one trial's payload holds infinities and negative zeros",
    ),
)
