"""Problem 054: ring attention. The harness's side: sizes, inputs, tolerance, cost."""

import torch

from pkb.inputs.attention import attention_mode, matching_queries
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Each query matches one key that it may see, in any shard; two rings of half the ranks in the ragged trial.

    Edge trial: a few positions, scores so large that their exponential overflows.
    """
    z = ctx.size
    positions = {"ragged": z.S + 3, "edge": min(z.S, 5)}.get(ctx.variant, z.S)
    causal, softmax_scale = attention_mode(ctx, z.D)
    scale = z.D**-0.5 if softmax_scale is None else softmax_scale
    halves = ctx.variant == "ragged" and ctx.world_size >= 4 and ctx.world_size % 2 == 0
    ring = ctx.world_size // 2 if halves else ctx.world_size
    first = ctx.rank // ring * ring

    shape = (z.B, positions, z.H, z.D)
    keys = torch.cat([ctx.of(r).randn(*shape) for r in range(first, first + ring)], dim=1)
    k = ctx.own.randn(*shape)  # first from its own stream: what the peers above see as this rank's keys
    v = ctx.own.values(*shape)
    start = (ctx.rank - first) * positions
    q = matching_queries(ctx.own, keys, start, positions, causal, scale, boost=20.0 if ctx.variant == "edge" else 1.0)
    return q, k, v, softmax_scale, causal, ctx.group(range(first, first + ring)) if halves else None


def cost(shape: Shape) -> Cost:
    """Causal, as timed: rank g's keys and values are needed by the ranks above it; mean over ranks. At least, from five ranks
    on, q, k, v and the output are exchanged for heads (Ulysses).
    """
    z, e, g = shape.size, shape.element_size, shape.world_size
    n = z.B * z.S * z.H * z.D
    scores = 4 * z.B * z.H * z.S**2  # one block of scores in fp32
    return Cost(
        sent_bytes=(g - 1) * n * e,
        least_sent_bytes=(g - 1) * min(1, 4 / g) * n * e,
        flops=4 * z.B * z.H * z.D * z.S**2 * g / 2,
        memory_bytes=3 * n * e + (g - 1) * n * e + n * e,
        footprint_bytes=8 * n * e + 10 * n * 4 + 4 * scores,
    )


PROBLEM = Problem(
    title="Ring attention: keys and values travel around the ranks, partial results are merged by log-sum-exp",
    category="context parallel",
    source="ring-flash-attention (contiguous shards, as in Megatron-LM context parallelism)",
    sizes={
        "smoke": {"B": 2, "S": 40, "H": 4, "D": 16},
        "default": {"B": 16, "S": 2, "H": 8, "D": 64},
        "production": {"B": 1, "S": 8192, "H": 32, "D": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "queries match planted keys in near and far shards, so that outputs stay of order one at any length; the original's "
        "scores are nearly flat",
        "causal and not, with the default and an explicit scale, and rings over half the ranks all occur; the original is only "
        "causal over the world",
        "any number of ranks is admissible; the original asks for a divisor of the 8 heads",
    ),
    tags=("attention", "ring", "point-to-point"),
)
