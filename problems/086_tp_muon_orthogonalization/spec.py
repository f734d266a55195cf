"""Problem 086: tensor-parallel Muon orthogonalisation. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape

#: (steps, coefficient set, partition_dim) of a trial.
SETTINGS = {
    "plain": (5, "quintic", 1),
    "integers": (5, "simple", 0),
    "wide": (8, "polar_express", 0),
    "ragged": (4, "aol", 1),
    "edge": (10, "quintic", 0),
}


def draw_decaying(ctx: Context, rows: int, columns: int) -> Any:
    """(R, c) of this rank: the whole matrix has singular values spread log-uniformly over a factor of twenty, times those of
    a Gaussian matrix, as momenta have decaying spectra."""
    import torch

    shared = ctx.stream("row space")
    left = torch.linalg.qr(shared.randn(rows, rows, dtype=torch.float32)).Q
    spectrum = torch.exp(shared.uniform(-3.0, 0.0, rows, dtype=torch.float32))
    return (left * spectrum) @ ctx.own.randn(rows, columns, dtype=torch.float32)


def make_inputs(ctx: Context) -> tuple:
    """(x, steps, coefficient_type, partition_dim); see SETTINGS.

    wide: shards of very different norms. ragged: odd sizes. edge: a tall matrix (more rows than columns in all), one shard
    zero.
    """
    import torch

    steps, coefficients, partition_dim = SETTINGS[ctx.variant]
    rows, columns = ctx.size.R, ctx.size.C // ctx.world_size
    if ctx.variant == "ragged":
        rows, columns = rows - 1, columns - 3
    if ctx.variant == "edge":
        columns = max(1, rows // (2 * ctx.world_size))
    integers = ctx.variant == "integers"
    x = ctx.own.values(rows, columns, dtype=torch.float32) if integers else draw_decaying(ctx, rows, columns)
    if ctx.variant == "wide":
        x = x * 2.0 ** (ctx.rank % 4 * 2)
    if ctx.variant == "edge" and ctx.rank == ctx.world_size - 1:
        x = torch.zeros_like(x)
    x = x.to(ctx.dtype)
    return (x.T.contiguous() if partition_dim == 0 else x), steps, coefficients, partition_dim


def admissible(shape: Shape) -> str | None:
    """Columns divide over the ranks."""
    s = shape.size
    if s.C % shape.world_size or s.C // shape.world_size < 4:
        return f"C={s.C} must be a multiple of the {shape.world_size} ranks, at least 4 per rank; change size.C"
    if s.R < 4:
        return f"R={s.R} is too small; raise size.R to 4 or more"
    return None


def cost(shape: Shape) -> Cost:
    """All-reduce of half the (symmetric) float32 Gram matrix per step; Gram, square and update with symmetry used.

    At least one such matrix, as later Gram matrices are polynomials of the first, or where that is less the gathered shards.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    steps = SETTINGS["plain"][0]
    columns = s.C // world_size
    gram = s.R * s.R
    wide = max(4, b)
    return Cost(
        sent_bytes=steps * 2 * (world_size - 1) / world_size * 2 * s.R * (s.R + 1),
        least_sent_bytes=min(2 * s.R * (s.R + 1), (world_size - 1) * s.R * columns * b),
        flops=steps * (3 * gram * columns + gram * s.R / world_size),
        memory_bytes=2 * s.R * columns * b,
        footprint_bytes=2 * s.R * columns * b + 4 * s.R * columns * wide + 5 * gram * wide,
    )


PROBLEM = Problem(
    title="Newton-Schulz orthogonalisation of a matrix sharded over tensor-parallel ranks",
    category="tensor parallel",
    source="Megatron-LM / NVIDIA emerging-optimizers (Muon)",
    sizes={
        "smoke": {"R": 48, "C": 96},
        "default": {"R": 512, "C": 512},
        "production": {"R": 4096, "C": 14336},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "matrices have a decaying spectrum; the original's are square Gaussian ones, whose smallest directions are not converged",
        "trials vary the coefficient set, the number of steps, the partitioned axis and the aspect ratio; shards differ in norm "
        "and one is zero",
        "x has the requested dtype; the original's is always bfloat16",
        "errors are judged relative to the output's RMS, which falls with the size",
    ),
    tags=("all-reduce", "optimizer"),
)
