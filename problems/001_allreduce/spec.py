"""Problem 001: all-reduce. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(tensor,): (M, N), position-, rank- and trial-dependent; an odd element count in the ragged trial."""
    rows, cols = ctx.size.M, ctx.size.N
    if ctx.variant == "ragged":
        rows, cols = rows - 1, cols - 3
    if ctx.variant == "edge":
        rows, cols = 1, 7  # fewer elements than ranks times any vector width
    return (ctx.own.values(rows, cols),)


def cost(shape: Shape) -> Cost:
    """Reduce-scatter and all-gather of S = M N b bytes. At least S must leave every rank; about so much suffices if the switch
    reduces and multicasts.
    """
    elements = shape.size.M * shape.size.N
    nbytes = elements * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * nbytes,
        least_sent_bytes=nbytes,
        flops=share * elements,
        memory_bytes=2 * nbytes,
        footprint_bytes=3 * nbytes,
    )


PROBLEM = Problem(
    title="Out-of-place sum all-reduce of one dense tensor",
    category="collective primitive",
    source="generic (the standard all-reduce of a torch.distributed program)",
    sizes={
        "smoke": {"M": 64, "N": 96},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 16384, "N": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(elementwise=True),
    deviations=("inputs are random and differ by position, rank and trial; the original's are the constant rank + 1",),
)
