"""Problem 051: MoE layer with fewer experts than ranks. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.inputs.routing import moe_layer
from pkb.problem import Context, Cost, Problem, Shape


def group_size(shape: Shape) -> int:
    """Ranks of one expert-parallel group: G, or the whole world where that is smaller."""
    return min(shape.size.G, shape.world_size)


def make_inputs(ctx: Context) -> list:
    """Skewed routing with a margin; rank i of every group holds the same expert; the group is given or left to derive.

    group is None where deriving it gives the same ranks, except in the ragged trial.
    """
    z, g = ctx.size, group_size(ctx)
    first = ctx.rank // g * g
    expert = ctx.stream(f"expert {ctx.rank - first}")  # replicas of one expert share its weights
    derived = min(z.E, ctx.world_size)
    group = None if derived == g and ctx.variant != "ragged" else ctx.group(range(first, first + g))
    return [*moe_layer(ctx, z.T, z.H, z.I, z.E, z.k, g, expert), z.E, z.k, group]


def admissible(shape: Shape) -> str | None:
    z, g = shape.size, group_size(shape)
    if shape.world_size % g:
        return f"groups of G={g} ranks must divide the {shape.world_size} ranks"
    if z.E % g:
        return f"E={z.E} experts must be a multiple of the {g} ranks of a group"
    if not z.k < z.E <= z.H:
        return f"need k < E <= H, got k={z.k}, E={z.E}, H={z.H}"
    return None


def cost(shape: Shape) -> Cost:
    """Dispatch and return of T k rows, of which (G-1)/G leave the rank; router and gated MLP on R = T k received rows.

    At least one row per token and distinct remote rank among its k experts (mean number D if all experts are equally likely;
    partial sums can be formed before the return), or where that is less the MLP's weights to all ranks.
    """
    z, e, g = shape.size, shape.element_size, group_size(shape)
    experts, rows = z.E, z.T * z.k
    remote = (g - 1) * (1 - math.comb(experts - experts // g, z.k) / math.comb(experts, z.k))
    weights = 3 * z.H * z.I * e
    return Cost(
        sent_bytes=2 * rows * (g - 1) / g * z.H * e + 8 * experts * (g - 1),
        least_sent_bytes=min(2 * z.T * remote * z.H * e + 8 * experts * (g - 1), (g - 1) * weights),
        flops=2 * z.T * z.H * experts + 6 * rows * z.H * z.I,
        memory_bytes=2 * z.T * z.H * e + experts * z.H * e + weights + 2 * rows * z.H * e,
        # skewed routing: room for four times the mean load; rows before and after exchange, three hidden activations
        footprint_bytes=2 * z.T * z.H * e + weights + 4 * rows * (4 * z.H + 4 * z.I) * e,
    )


PROBLEM = Problem(
    title="Mixture-of-experts layer with fewer experts than ranks: independent expert-parallel groups",
    category="expert parallel",
    source="VeOmni (fused MoE with expert parallelism, narrow case, data parallel over groups)",
    sizes={
        "smoke": {"T": 64, "H": 64, "I": 32, "E": 4, "G": 2, "k": 2},
        "default": {"T": 1024, "H": 1024, "I": 128, "E": 4, "G": 4, "k": 2},
        "production": {"T": 8192, "H": 4096, "I": 14336, "E": 4, "G": 4, "k": 2},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "the router is equal on all ranks and its logits have a gap of 0.5 at place k, so that rounding cannot change the "
        "routing; the original's differs by rank and leaves ties",
        "routing is skewed by Zipf's law, with empty experts and a rank without tokens in one trial; the original's is near "
        "uniform",
        "groups have at least two ranks and k < E at every world size; on two ranks the original has one expert, no exchange",
        "the same expert has the same weights in every group; the original's differ",
        "gate_bias is None in one trial, down_proj is scaled so that outputs are of order one",
        "the reference runs without autograd; only forward values are compared",
    ),
    tags=("mixture of experts", "all-to-all"),
)
