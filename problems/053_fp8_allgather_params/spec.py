"""Problem 053: parameter all-gather through FP8. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.fp8 import delayed_scaling
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(flat_param_shard (s,), amax_history (A,)): odd s when ragged, five elements and a zero shard in the edge trial."""
    count = {"ragged": ctx.size.s - 3, "edge": 5}.get(ctx.variant, ctx.size.s)
    return delayed_scaling(ctx, count, ctx.size.A)


def admissible(shape: Shape) -> str | None:
    if shape.size.s < 4 or shape.size.A < 2:
        return f"need a shard s of at least 4 elements and a history A of at least 2, got s={shape.size.s}, A={shape.size.A}"
    return None


def cost(shape: Shape) -> Cost:
    """The shard's FP8 bytes and one fp32 scale go to every peer; the full tensor of W s elements is written."""
    w, s, e = shape.world_size, shape.size.s, shape.element_size
    return Cost(
        sent_bytes=(w - 1) * (s + 4),
        flops=5 * s + w * s,
        memory_bytes=s * e + s + w * s + w * s * e,
        footprint_bytes=s * (2 * e + 3 * 4 + 1) + w * s * e,  # shard, rounded, fp32 temporaries, codes; the full tensor
    )


PROBLEM = Problem(
    title="All-gather of parameter shards rounded to FP8 E4M3 with delayed scaling and an amax history",
    category="FSDP/ZeRO",
    source="NVIDIA Transformer Engine (delayed scaling) on FSDP parameters",
    sizes={
        "smoke": {"s": 1000, "A": 16},
        "default": {"s": 4096, "A": 16},
        "production": {"s": 33_554_432, "A": 16},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    tolerance=(Tolerance(), Tolerance(exact=True)),
    deviations=(
        "the amax history is random and differs by rank, with spikes that stay, that roll out, or none; the original's is a "
        "constant 1e-8 and never sets the scale",
        "parameters are heavy-tailed and scaled differently on each rank; on some ranks most fall among the FP8 subnormals",
        "one trial has a shard with only zeros",
    ),
    tags=("fp8", "all-gather"),
)
