"""Problem 045: reduce-scatter and RMSNorm. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Partial sums whose magnitude differs by row (from 1e-3 to 1) and by rank, a replicated gain, and eps.

    Many rows have a mean square near eps, so that the average and eps matter. ragged: odd row width and count. edge: all rows
    are of that kind, and some are zero on all ranks.
    """
    import torch

    world_size = ctx.world_size
    rows, hidden = ctx.size.R, ctx.size.H
    if ctx.variant == "ragged":
        rows, hidden = max(1, rows - 1), hidden - 3
    eps = {"integers": 1e-6, "wide": 1e-3, "ragged": 1e-4}.get(ctx.variant, 1e-5)

    count = world_size * rows
    if ctx.variant == "integers":
        scale = torch.exp2(ctx.shared.integers(-12, 1, count, 1).float())
    else:
        low, high = (-4.0, -2.0) if ctx.variant == "edge" else (-3.0, 0.0)
        scale = 10 ** ctx.shared.uniform(low, high, count, 1, dtype=torch.float32)
    if ctx.variant == "edge":
        scale = scale * (ctx.shared.uniform(0, 1, count, 1, dtype=torch.float32) > 0.15)
    partial = ctx.own.values(count, hidden, dtype=torch.float32) * scale * (1 + ctx.rank)
    gamma = ctx.stream("gamma").randn(hidden)
    return partial.to(ctx.dtype).view(-1), gamma, eps


def cost(shape: Shape) -> Cost:
    """Reduce-scatter of W R H elements and the norm of R H."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    elements = s.R * s.H
    return Cost(
        sent_bytes=(world_size - 1) * elements * b,
        flops=(world_size - 1) * elements + 5 * elements,
        memory_bytes=(world_size + 1) * elements * b + s.H * b,
        footprint_bytes=2 * world_size * elements * b + elements * (2 * b + 4 * 4),
    )


PROBLEM = Problem(
    title="Reduce-scatter (mean) of partial activations followed by RMSNorm on the received rows",
    category="sequence parallel",
    source="generic (Megatron-LM style sequence-parallel reduce-scatter and RMSNorm)",
    sizes={
        "smoke": {"R": 16, "H": 64},
        "default": {"R": 128, "H": 128},
        "production": {"R": 1024, "H": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "rows differ in magnitude by up to 1e3 and many are near sqrt(eps), so that the division by W and eps matter",
        "partial sums differ in scale by rank, so that a missing contribution is obvious",
        "gamma has a seed of its own; eps differs by trial; one trial has odd sizes, one rows of zeros",
    ),
    tags=("reduce-scatter",),
)
