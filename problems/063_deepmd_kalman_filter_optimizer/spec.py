"""Problem 063: block Kalman filter step. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def block_lengths(ctx: Context) -> list[int]:
    """Lengths of this rank's blocks: b each, the last one shorter, one block fewer on rank 0; other lengths when ragged.

    Edge trial: the last rank holds a single parameter.
    """
    count, b = max(1, ctx.size.nb - (ctx.rank == 0)), ctx.size.b
    if ctx.variant == "ragged":
        return [b - ctx.own.integer(0, b // 2) for _ in range(count)]
    if ctx.variant == "edge" and ctx.rank == ctx.world_size - 1:
        return [1]
    return [b] * (count - 1) + [2 * b // 3 + 1]


def make_inputs(ctx: Context) -> tuple:
    """(H, error, weights, P, lambda, nu), always float64; the innovation is common, everything else differs by rank.

    H has norm about sqrt(lambda), P is a positive diagonal plus a matrix of rank 16, the innovation makes weights of order one
    change by some tenths.
    """
    lengths = block_lengths(ctx)
    lam, nue = ctx.shared.real(0.95, 0.995), ctx.shared.real(0.99, 0.9999)
    sign = ctx.shared.choice((-1.0, 1.0))
    innovation = sign * ctx.shared.real(0.3, 0.6) * math.sqrt(ctx.size.b) * ctx.size.nb * ctx.world_size
    fill = ctx.own.values if ctx.variant == "wide" else ctx.own.randn
    H, weights, P = [], [], []
    for b in lengths:
        H.append(fill(b, 1, scale=math.sqrt(lam / b), dtype=torch.float64))
        weights.append(ctx.own.values(b, 1, dtype=torch.float64))
        factor = ctx.own.randn(b, 16, scale=1 / math.sqrt(b), dtype=torch.float64)
        P.append(factor @ factor.t() + torch.diag(ctx.own.uniform(0.5, 2.0, b, dtype=torch.float64)))
    return H, torch.tensor(innovation, dtype=torch.float64, device=ctx.device), weights, P, lam, nue


def admissible(shape: Shape) -> str | None:
    return None if shape.size.b >= 4 else f"b={shape.size.b} must be at least 4"


def cost(shape: Shape) -> Cost:
    """Scalar all-reduce and all-gather of the weights; P is read for K = P H, then read and written for the update."""
    z, w = shape.size, shape.world_size
    blocks = z.nb - 1 / w
    last = 2 * z.b // 3 + 1
    n = (blocks - 1) * z.b + last
    squares = (blocks - 1) * z.b**2 + last**2
    return Cost(
        sent_bytes=8 * n * (w - 1) + 8,
        flops=5 * squares,
        memory_bytes=24 * squares,
        footprint_bytes=16 * squares + 4 * 8 * z.b**2 + 8 * n * (4 * w + 8),
    )


PROBLEM = Problem(
    title="Block extended Kalman filter optimiser step: scalar all-reduce, covariance update, all-gather of the weights",
    category="data parallel",
    source="DeePMD-kit (LKF optimiser, distributed blocks)",
    sizes={
        "smoke": {"nb": 3, "b": 64},
        "default": {"nb": 8, "b": 1024},
        "production": {"nb": 16, "b": 5120},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    mutates=("weights", "P"),
    fixed=("P",),
    # float64 throughout: oracle and reference coincide, so all the room for another order of summation is here (2e-10)
    tolerance=Tolerance(floor_ulps=1e6),
    deviations=(
        "float64 outputs are compared at a relative error of about 1e-10; at the original's tolerance the update is invisible",
        "covariances are dense positive definite matrices; the original's are the identity",
        "block lengths and numbers of blocks differ by rank; the innovation is common to all ranks; factors vary by trial",
    ),
    tags=("optimiser", "kalman filter"),
)
