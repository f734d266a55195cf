"""Problem 015: two-layer MLP with sharded input and output. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.problem import Context, Cost, Problem, Shape


def _rounded(n: int, world_size: int) -> int:
    """The next multiple of the world size."""
    return -(-n // world_size) * world_size


def make_inputs(ctx: Context) -> tuple:
    """(x_local, W1, W2): columns of x by rank; replicated weights scaled by 1/sqrt(H) and 1/sqrt(F)."""
    W = ctx.world_size
    R, H, F = _rounded(ctx.size.R, W), _rounded(ctx.size.H, W), ctx.size.F
    H2 = H
    if ctx.variant == "ragged":
        R, H, F = W * max(1, R // W - 1), W * max(1, H // W - 1), max(1, F - 5)
        H2 = max(1, H - 3)
    if ctx.variant == "edge":
        R = W  # one row per rank
    if ctx.variant == "integers":
        # a power of two keeps x W1 exact and of order one
        scale1 = 0.5 ** round(math.log2(4 * math.sqrt(H)))
        x = ctx.own.values(R, H // W)
        return x, ctx.shared.integers(-1, 2, H, F).to(ctx.dtype) * scale1, ctx.shared.randn(F, H2, scale=F**-0.5)
    return ctx.own.values(R, H // W), ctx.shared.values(H, F, scale=H**-0.5), ctx.shared.values(F, H2, scale=F**-0.5)


def cost(shape: Shape) -> Cost:
    """Each peer needs its rows of x_local only; both GEMMs need R/W rows only (the reference computes the first on all R)."""
    W, b = shape.world_size, shape.element_size
    R, H, F = _rounded(shape.size.R, W), _rounded(shape.size.H, W), shape.size.F
    rows = R // W
    return Cost(
        sent_bytes=(W - 1) * rows * (H // W) * b,
        flops=4 * rows * H * F,
        memory_bytes=(rows * H + 2 * H * F + rows * H) * b,
        footprint_bytes=(2 * R * H // W + 3 * R * H + 2 * H * F + 2 * R * F + 2 * rows * H) * b,
    )


PROBLEM = Problem(
    title="Two-layer SiLU MLP with feature-sharded input and row-sharded output",
    category="tensor parallel",
    source="generic (Megatron-LM like all-gather / GEMM / GEMM / reduce-scatter chain)",
    sizes={
        "smoke": {"R": 64, "H": 32, "F": 48},
        "default": {"R": 1024, "H": 256, "F": 512},
        "production": {"R": 16384, "H": 8192, "F": 28672},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "W1 and W2 are replicated (one network; the original's differ by rank) and scaled so that outputs are of order one",
        "all dimensions can be set; the original fixes H and F; one trial has odd sizes and fewer output than input features, one a "
        "single row per rank",
        "the contract is kept although its reduce-scatter adds only zeros and rows of the first GEMM go unused: whoever finds "
        "that redundancy may drop it, and the cost counts the least work (an all-to-all of x and an MLP on R/W rows)",
    ),
)
