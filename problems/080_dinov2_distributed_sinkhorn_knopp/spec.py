"""Problem 080: distributed Sinkhorn-Knopp. Sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def num_samples(ctx: Context) -> int:
    """b of this rank: nominal, uneven in the wide and ragged trials; 1 or none on the outer ranks in the edge trial."""
    b, world_size = ctx.size.b, ctx.world_size
    if ctx.variant in ("wide", "ragged"):
        return ctx.shared.split(b * world_size, world_size, 1)[ctx.rank]
    if ctx.variant == "edge" and ctx.rank == 0:
        return 1
    if ctx.variant == "edge" and ctx.rank == ctx.world_size - 1 and ctx.world_size > 2:
        return 0
    return b


def make_inputs(ctx: Context) -> tuple:
    """(teacher_output, teacher_temp, n_masked_patches_tensor, n_iterations).

    Scores in units of the temperature: prototypes of unequal popularity, means that differ by rank, and per-sample noise;
    below 40, so that exp stays finite. The edge trial has no iteration, where the batch size and the total matter.
    """
    import torch

    s = ctx.size
    prototypes = s.K - 3 if ctx.variant == "ragged" else s.K
    samples = num_samples(ctx)
    temperature = ctx.stream("temperature").real(0.04, 0.1)
    spread = 3.0 if ctx.variant == "wide" else 1.5
    popularity = ctx.stream("popularity").randn(prototypes, scale=1.5, dtype=torch.float32)
    by_rank = ctx.own.randn(prototypes, dtype=torch.float32)
    noise = ctx.own.randn(samples, prototypes, scale=spread, dtype=torch.float32)
    scores = (popularity + by_rank + noise).clamp(-40, 40) * temperature
    counted = ctx.own.integer(samples // 2, samples + 1) if ctx.variant != "plain" else samples
    n_masked = torch.tensor([counted], dtype=torch.int64, device=ctx.device)
    iterations = {"integers": 1, "ragged": 5, "edge": 0}.get(ctx.variant, 3)
    return scores, temperature, n_masked, iterations


def cost(shape: Shape) -> Cost:
    """One all-reduce of K float32 sums per iteration (three), which at least must leave every rank; one exp and about four
    operations per score and iteration.
    """
    s, world_size = shape.size, shape.world_size
    iterations = 3
    scores = s.b * s.K
    return Cost(
        sent_bytes=2 * (world_size - 1) / world_size * 4 * s.K * iterations,
        least_sent_bytes=4 * s.K * iterations,
        flops=scores * (2 + 4 * iterations),
        memory_bytes=2 * 4 * scores,
        footprint_bytes=4 * 4 * scores + 16 * s.K,
    )


PROBLEM = Problem(
    title="Sinkhorn-Knopp normalisation of teacher scores over a batch sharded over the ranks",
    category="data parallel",
    source="DINOv2 (teacher centring of the masked-patch loss)",
    sizes={
        "smoke": {"b": 64, "K": 512},
        "default": {"b": 1024, "K": 16384},
        "production": {"b": 2048, "K": 131072},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "scores spread over several temperatures, with unequal prototypes and rank-dependent means; the original's are nearly "
        "uniform, so that leaving out all communication changes the result by two percent",
        "errors are judged relative to the output, which is of order 1/K; under the original's absolute tolerance zeros pass",
        "the number of rows differs by rank, the counted rows differ from it, temperature and iterations vary by trial",
        "scores are float32 whatever dtype is requested, as in the original",
    ),
    tags=("all-reduce",),
)
