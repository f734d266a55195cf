"""Problem 030: all-reduce of shared LoRA gradients. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """Three gradients that differ by rank; odd ranks and widths in the ragged trial, rank 1 in the edge trial."""
    rk, f_in, f_out = ctx.size.rk, ctx.size.F_in, ctx.size.F_out
    if ctx.variant == "ragged":
        rk, f_in, f_out = rk - 1, f_in - 5, f_out - 3
    if ctx.variant == "edge":
        rk, f_in, f_out = 1, 3, 5  # fewer elements than ranks times any vector width
    return ctx.own.values(rk, f_in), ctx.own.values(rk, f_in), ctx.own.values(f_out, rk), None


def cost(shape: Shape) -> Cost:
    """All-reduce of n = rk (2 F_in + F_out) elements: reduce-scatter and all-gather. At least n must leave every rank; about so
    much suffices if the switch reduces and multicasts.
    """
    s = shape.size
    n = s.rk * (2 * s.F_in + s.F_out)
    share = (shape.world_size - 1) / shape.world_size
    nbytes = n * shape.element_size
    return Cost(
        sent_bytes=2 * share * nbytes,
        least_sent_bytes=nbytes,
        flops=share * n,
        memory_bytes=2 * nbytes,
        footprint_bytes=2 * nbytes,
    )


PROBLEM = Problem(
    title="Gradient all-reduce of LoRA factors shared by all experts",
    category="expert parallel",
    source="VeOmni expert-parallel grouped GEMM with LoRA (tail of its backward)",
    sizes={
        "smoke": {"rk": 4, "F_in": 64, "F_out": 96},
        "default": {"rk": 8, "F_in": 1024, "F_out": 1024},
        "production": {"rk": 64, "F_in": 7168, "F_out": 7168},
    },
    make_inputs=make_inputs,
    cost=cost,
    mutates=("grad_fc1_1_lora_A", "grad_fc1_2_lora_A", "grad_fc2_lora_B"),
    tolerance=Tolerance(elementwise=True),
    deviations=(
        "inputs are restored before every call; the original keeps summing what is already summed, up to infinity",
        "sums are judged against a float64 oracle, so that any order and precision of accumulation is right",
        "one trial has odd factor ranks and widths, one has three columns",
    ),
)
