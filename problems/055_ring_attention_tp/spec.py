"""Problem 055: attention under tensor and context parallelism. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.attention import attention_mode, matching_hidden, matching_projections, mixing
from pkb.problem import Context, Cost, Problem, Shape


def tp_size(shape: Shape) -> int:
    """Ranks of one tensor-parallel group at the nominal layout."""
    return min(shape.size.TP, shape.world_size)


def make_inputs(ctx: Context) -> tuple:
    """Rank = cp_rank * t + tp_rank. One ring over all ranks (t = 1) in the integers trial, one TP group over all in the edge
    trial where the heads allow it; scores whose exponential overflows in the edge trial.
    """
    z, world = ctx.size, ctx.world_size
    t = tp_size(ctx)
    if ctx.variant == "integers":
        t = 1
    if ctx.variant == "edge" and z.heads % world == 0:
        t = world
    ring = world // t
    cp_rank, tp_rank = divmod(ctx.rank, t)

    positions = {"ragged": z.S + 3, "edge": min(z.S, 5)}.get(ctx.variant, z.S)
    causal, softmax_scale = attention_mode(ctx, z.D)
    scale = z.D**-0.5 if softmax_scale is None else softmax_scale
    hidden = matching_hidden(ctx, z.B, positions, z.Hd, ring, cp_rank, causal)
    weights = ctx.stream(f"weights of TP rank {tp_rank}")
    heads, boost = z.heads // t, 20.0 if ctx.variant == "edge" else 1.0
    w_qkv = matching_projections(weights, heads, z.D, z.Hd, ring * positions, scale, boost)
    w_o = mixing(weights, z.Hd, heads * z.D, gain=t**-0.5)  # t partial outputs are added
    tp_group = ctx.group(range(cp_rank * t, cp_rank * t + t)) if t < world else None
    cp_group = ctx.group(range(tp_rank, world, t)) if t > 1 else None
    return hidden, w_qkv, w_o, z.heads, softmax_scale, causal, tp_group, cp_group


def admissible(shape: Shape) -> str | None:
    z, t = shape.size, tp_size(shape)
    if shape.world_size % t or z.heads % t:
        return f"TP={t} must divide the {shape.world_size} ranks and the {z.heads} heads"
    return "Hd must be even" if z.Hd % 2 else None


def cost(shape: Shape) -> Cost:
    """Causal, as timed: keys and values to the CP ranks above (mean over ranks), TP all-reduce, projections, attention.

    At least, where that is less, the hidden states go in their place, or q, k, v and the context are exchanged for heads; and all
    of the TP group's addends must leave every rank.
    """
    z, e, t = shape.size, shape.element_size, tp_size(shape)
    ring, heads = shape.world_size // t, z.heads // t
    n, y = z.B * z.S * heads * z.D, z.B * z.S * z.Hd
    return Cost(
        sent_bytes=(ring - 1) * n * e + 2 * (t - 1) / t * y * e,
        least_sent_bytes=(ring - 1) * min(n, y / 2, 4 * n / ring) * e + (y * e if t > 1 else 0),
        flops=8 * y * heads * z.D + 4 * z.B * heads * z.D * z.S**2 * ring / 2,
        memory_bytes=y * e + 4 * heads * z.D * z.Hd * e + (ring - 1) * n * e + 2 * n * e + y * e,
        footprint_bytes=2 * y * e + 4 * heads * z.D * z.Hd * e + 11 * n * e + 40 * n + 16 * z.B * heads * z.S**2,
    )


PROBLEM = Problem(
    title="Attention layer, heads tensor-parallel and sequence context-parallel: QKV, ring attention, output, all-reduce",
    category="tensor parallel",
    source="Megatron-LM (tp-cp rank order) with ring-flash-attention",
    sizes={
        "smoke": {"TP": 2, "B": 2, "S": 24, "Hd": 64, "heads": 4, "D": 16},
        "default": {"TP": 2, "B": 16, "S": 4, "Hd": 512, "heads": 8, "D": 64},
        "production": {"TP": 2, "B": 1, "S": 8192, "Hd": 4096, "heads": 32, "D": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "projections make each query match one planted position, near or far, and outputs are of order one; the original's "
        "attention is almost uniform and its outputs small",
        "causal and not, default and explicit scale, TP sizes 1, TP and all ranks occur; the original is always causal, TP 2",
    ),
    tags=("attention", "ring", "context parallel"),
)
