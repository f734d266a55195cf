"""Problem 052: gradient reduce-scatter through FP8. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.fp8 import delayed_scaling
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(flat_grads (W s,), amax_history (A,)): odd chunks when ragged, chunks of five and a zero rank in the edge trial."""
    chunk = {"ragged": ctx.size.s - 3, "edge": 5}.get(ctx.variant, ctx.size.s)
    return delayed_scaling(ctx, ctx.world_size * chunk, ctx.size.A)


def admissible(shape: Shape) -> str | None:
    if shape.size.s < 4 or shape.size.A < 2:
        return f"need a chunk s of at least 4 elements and a history A of at least 2, got s={shape.size.s}, A={shape.size.A}"
    return None


def cost(shape: Shape) -> Cost:
    """Each peer gets its chunk as FP8 bytes and one fp32 scale; the rank reads n = W s gradients and W s codes of peers."""
    w, s, e = shape.world_size, shape.size.s, shape.element_size
    n = w * s
    return Cost(
        sent_bytes=(w - 1) * (s + 4),
        flops=5 * n + n,
        memory_bytes=n * e + n + n + s * e,
        footprint_bytes=n * (2 * e + 3 * 4 + 1) + 2 * s * e,  # input, rounded, up to three fp32 temporaries, codes, shards
    )


PROBLEM = Problem(
    title="Gradient reduce-scatter (mean) of values rounded to FP8 E4M3 with delayed scaling and an amax history",
    category="FSDP/ZeRO",
    source="NVIDIA Transformer Engine (delayed scaling) on FSDP gradients",
    sizes={
        "smoke": {"s": 1000, "A": 16},
        "default": {"s": 4096, "A": 16},
        "production": {"s": 33_554_432, "A": 16},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    # sums of W rounded terms in any order; one bf16 addition is off by half an ulp of its partial sum
    tolerance=(Tolerance(floor_ulps=4.0), Tolerance(exact=True)),
    deviations=(
        "the amax history is random and differs by rank, with spikes that stay, that roll out, or none; the original's is a "
        "constant 1e-8 and never sets the scale",
        "gradients are heavy-tailed and scaled differently on each rank; on some ranks most fall among the FP8 subnormals",
        "one trial has a rank with only zeros",
    ),
    tags=("fp8", "reduce-scatter"),
)
