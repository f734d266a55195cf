"""Problem 049: expert-parallel MoE layer, one expert per rank. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.routing import moe_layer
from pkb.problem import Context, Cost, Problem, Shape


def top_k(shape: Shape) -> int:
    """k, but below the number of experts: with k = E every token goes everywhere and routing decides nothing."""
    return min(shape.size.k, shape.world_size - 1)


def make_inputs(ctx: Context) -> list:
    """Skewed routing with a margin; this rank's expert is its own; unequal token counts in the ragged and edge trials."""
    z, k = ctx.size, top_k(ctx)
    expert = ctx.stream("expert", shared=False)
    return [*moe_layer(ctx, z.T, z.H, z.I, ctx.world_size, k, ctx.world_size, expert), ctx.world_size, k, None]


def admissible(shape: Shape) -> str | None:
    if shape.world_size > shape.size.H:
        return f"H={shape.size.H} must be at least the number of experts, {shape.world_size}"
    return None


def cost(shape: Shape) -> Cost:
    """Dispatch and return of T k rows, of which (G-1)/G leave the rank; router and gated MLP on R = T k received rows. At least,
    where that is less, the expert's weights go to all ranks.
    """
    z, e, g = shape.size, shape.element_size, shape.world_size
    experts, rows = g, z.T * top_k(shape)
    weights = 3 * z.H * z.I * e
    return Cost(
        sent_bytes=2 * rows * (g - 1) / g * z.H * e + 8 * experts * (g - 1),
        least_sent_bytes=(g - 1) * min(2 * rows / g * z.H * e + 8 * experts, weights),
        flops=2 * z.T * z.H * experts + 6 * rows * z.H * z.I,
        memory_bytes=2 * z.T * z.H * e + experts * z.H * e + weights + 2 * rows * z.H * e,
        # skewed routing: room for four times the mean load; rows before and after exchange, three hidden activations
        footprint_bytes=2 * z.T * z.H * e + weights + 4 * rows * (4 * z.H + 4 * z.I) * e,
    )


PROBLEM = Problem(
    title="Mixture-of-experts layer with one expert per rank: router, token all-to-all, gated MLP, all-to-all back",
    category="expert parallel",
    source="VeOmni (fused MoE with expert parallelism, balanced case)",
    sizes={
        "smoke": {"T": 64, "H": 64, "I": 32, "k": 2},
        "default": {"T": 1024, "H": 1024, "I": 128, "k": 2},
        "production": {"T": 8192, "H": 4096, "I": 14336, "k": 2},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "the router is equal on all ranks and its logits have a gap of 0.5 at place k, so that rounding cannot change the "
        "routing; the original's differs by rank and leaves ties",
        "routing is skewed by Zipf's law, with an empty expert and a rank without tokens in one trial; the original's is near "
        "uniform",
        "top_k is at most E - 1 (1 on two ranks); the original sends every token to every expert there",
        "gate_bias is None in one trial, down_proj is scaled so that outputs are of order one",
        "the reference runs without autograd; only forward values are compared",
    ),
    tags=("mixture of experts", "all-to-all"),
)
