"""Problem 050: expert-parallel MoE layer, several experts per rank. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.inputs.routing import moe_layer
from pkb.problem import Context, Cost, Problem, Shape


def experts_of(shape: Shape) -> int:
    """E = L G."""
    return shape.size.L * shape.world_size


def make_inputs(ctx: Context) -> list:
    """Skewed routing with a margin; the L experts of a rank share its own MLP; unequal token counts in two trials."""
    z = ctx.size
    expert = ctx.stream("expert", shared=False)
    return [*moe_layer(ctx, z.T, z.H, z.I, experts_of(ctx), z.k, ctx.world_size, expert), experts_of(ctx), z.k, None]


def admissible(shape: Shape) -> str | None:
    z, experts = shape.size, experts_of(shape)
    if z.k >= experts:
        return f"k={z.k} must be below the number of experts L * ranks = {experts}"
    if experts > z.H:
        return f"H={z.H} must be at least the number of experts, {experts}"
    return None


def cost(shape: Shape) -> Cost:
    """Dispatch and return of one row per token and distinct remote rank among its k experts (mean number D if all experts
    are equally likely; partial sums can be formed before the return); router and gated MLP on R = T k received rows. At least,
    where that is less, the MLP's weights go to all ranks.
    """
    z, e, g = shape.size, shape.element_size, shape.world_size
    experts, rows = experts_of(shape), z.T * z.k
    remote = (g - 1) * (1 - math.comb(experts - experts // g, z.k) / math.comb(experts, z.k))
    weights = 3 * z.H * z.I * e
    return Cost(
        sent_bytes=2 * z.T * remote * z.H * e + 8 * experts * (g - 1),
        least_sent_bytes=min(2 * z.T * remote * z.H * e + 8 * experts * (g - 1), (g - 1) * weights),
        flops=2 * z.T * z.H * experts + 6 * rows * z.H * z.I,
        memory_bytes=2 * z.T * z.H * e + experts * z.H * e + weights + 2 * rows * z.H * e,
        # skewed routing: room for four times the mean load; rows before and after exchange, three hidden activations
        footprint_bytes=2 * z.T * z.H * e + weights + 4 * rows * (4 * z.H + 4 * z.I) * e,
    )


PROBLEM = Problem(
    title="Mixture-of-experts layer with several experts per rank: router, token all-to-all, gated MLP, all-to-all back",
    category="expert parallel",
    source="VeOmni (fused MoE with expert parallelism, wide case)",
    sizes={
        "smoke": {"T": 64, "H": 64, "I": 32, "L": 2, "k": 2},
        "default": {"T": 1024, "H": 1024, "I": 128, "L": 2, "k": 2},
        "production": {"T": 8192, "H": 6144, "I": 10752, "L": 2, "k": 4},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "the router is equal on all ranks and its logits have a gap of 0.5 at place k, so that rounding cannot change the "
        "routing; the original's differs by rank and leaves ties",
        "routing is skewed by Zipf's law; one trial has empty experts, all tokens on one rank, one rank without; the "
        "original's is near uniform",
        "gate_bias is None in one trial, down_proj is scaled so that outputs are of order one",
        "the reference runs without autograd; only forward values are compared",
    ),
    tags=("mixture of experts", "all-to-all"),
)
