"""Problem 056: a pipeline of context-parallel attention layers. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.inputs.attention import attention_mode, matching_hidden, matching_projections, mixing
from pkb.problem import Context, Cost, Problem, Shape


def num_stages(shape: Shape) -> int:
    """Pipeline stages at the nominal layout."""
    return min(shape.size.PP, shape.world_size)


def make_inputs(ctx: Context) -> tuple:
    """Rank = stage * C + cp_rank. Later stages get random hidden states, which they must not use.

    A single stage with one ring over all ranks in the integers trial, up to four stages in the edge trial. Stage 0 matches
    planted positions; later stages have random projections with scores of standard deviation about 2.
    """
    z, world = ctx.size, ctx.world_size
    stages = {"integers": 1, "edge": math.gcd(world, 4)}.get(ctx.variant, num_stages(ctx))
    ring = world // stages
    stage, cp_rank = divmod(ctx.rank, ring)

    positions = {"ragged": z.S + 3, "edge": min(z.S, 5)}.get(ctx.variant, z.S)
    causal, softmax_scale = attention_mode(ctx, z.D)
    scale = z.D**-0.5 if softmax_scale is None else softmax_scale
    weights = ctx.stream(f"weights of stage {stage}")
    if stage == 0:
        hidden = matching_hidden(ctx, z.B, positions, z.Hd, ring, cp_rank, causal)
        boost = 20.0 if ctx.variant == "edge" else 1.0
        w_qkv = matching_projections(weights, z.heads, z.D, z.Hd, ring * positions, scale, boost)
    else:
        hidden = ctx.own.randn(z.B, positions, z.Hd)
        w_qkv = mixing(weights, 3 * z.heads * z.D, z.Hd)
        spread = max(1.5, math.sqrt(math.log(ring * positions)))  # of the scores: longer sequences need sharper ones
        w_qkv[: 2 * z.heads * z.D] *= math.sqrt(spread / (scale * math.sqrt(z.D)))
    w_o = mixing(weights, z.Hd, z.heads * z.D, gain=1.0 if ctx.variant == "edge" else 1.5)
    cp_group = ctx.group(range(stage * ring, stage * ring + ring)) if stages > 1 else None
    pp_group = ctx.group(range(cp_rank, world, ring)) if stages > 1 else None
    return hidden, w_qkv, w_o, z.heads, softmax_scale, causal, cp_group, pp_group


def admissible(shape: Shape) -> str | None:
    if shape.world_size % num_stages(shape):
        return f"PP={num_stages(shape)} stages must divide the {shape.world_size} ranks"
    return "Hd must be even" if shape.size.Hd % 2 else None


def cost(shape: Shape) -> Cost:
    """Causal, as timed: keys and values to the CP ranks above (mean over ranks), and the output to the next stage.

    At least, where that is less, the stage's input goes in their place, or q, k, v and the context are exchanged for heads.
    """
    z, e, stages = shape.size, shape.element_size, num_stages(shape)
    ring = shape.world_size // stages
    n, y = z.B * z.S * z.heads * z.D, z.B * z.S * z.Hd
    return Cost(
        sent_bytes=(ring - 1) * n * e + (y * e if stages > 1 else 0),
        least_sent_bytes=(ring - 1) * min(n, y / 2, 4 * n / ring) * e + (y * e if stages > 1 else 0),
        flops=8 * y * z.heads * z.D + 4 * z.B * z.heads * z.D * z.S**2 * ring / 2,
        memory_bytes=y * e + 4 * z.heads * z.D * z.Hd * e + (ring - 1) * n * e + 2 * n * e + y * e,
        footprint_bytes=3 * y * e + 4 * z.heads * z.D * z.Hd * e + 11 * n * e + 40 * n + 16 * z.B * z.heads * z.S**2,
    )


PROBLEM = Problem(
    title="Pipeline of attention layers: QKV, ring attention over the stage's ranks, output projection, on to the next stage",
    category="pipeline parallel",
    source="Megatron-LM (cp-pp rank order) with ring-flash-attention",
    sizes={
        "smoke": {"PP": 2, "B": 2, "S": 24, "Hd": 64, "heads": 4, "D": 16},
        "default": {"PP": 2, "B": 16, "S": 4, "Hd": 512, "heads": 8, "D": 64},
        "production": {"PP": 2, "B": 1, "S": 8192, "Hd": 4096, "heads": 32, "D": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "scores are peaked and activations of order one in every stage; the original's later stages attend almost uniformly",
        "hidden_states of later stages are random, unrelated to the pipeline's input; the original passes the input everywhere",
        "causal and not, default and explicit scale, one, PP and up to four stages; the original is causal with two stages",
    ),
    tags=("attention", "ring", "point-to-point"),
)
