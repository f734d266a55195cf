"""Problem 011: all-gather + GEMM, transposed operand. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(A_local, B): (M, K/W) columns of A, and this rank's N columns of one global (K, W N) weight, scaled by 1/sqrt(K)."""
    M, N, K_local = ctx.size.M, ctx.size.N, ctx.size.K // ctx.world_size
    if ctx.variant == "ragged":
        M, N, K_local = max(1, M - 3), max(1, N - 5), max(1, K_local - 3)
    if ctx.variant == "edge":
        M = 1  # one decoded token
    K = K_local * ctx.world_size
    if ctx.variant == "integers":
        return ctx.own.integers(-2, 3, M, K_local, dtype=ctx.dtype), ctx.own.integers(-2, 3, K, N, dtype=ctx.dtype)
    return ctx.own.values(M, K_local), ctx.own.values(K, N, scale=K**-0.5)


def admissible(shape: Shape) -> str | None:
    if shape.size.K % shape.world_size:
        return f"K={shape.size.K} is not divisible by the number of ranks"
    return None


def cost(shape: Shape) -> Cost:
    """All-gather of one (M, K/W) block per rank, then 2 M N K operations."""
    M, N, K, b = shape.size.M, shape.size.N, shape.size.K, shape.element_size
    return Cost(
        sent_bytes=(shape.world_size - 1) * M * (K / shape.world_size) * b,
        flops=2 * M * N * K,
        memory_bytes=(M * K + K * N + M * N) * b,
        footprint_bytes=(M * K + 2 * M * K / shape.world_size + K * N + M * N) * b,
    )


PROBLEM = Problem(
    title="All-gather of K-sharded activations, held transposed, followed by a GEMM",
    category="tensor parallel",
    source="generic (all-gather + GEMM overlap, transposed-operand layout)",
    sizes={
        "smoke": {"M": 64, "N": 48, "K": 64},
        "default": {"M": 1024, "N": 1024, "K": 512},
        "production": {"M": 8192, "N": 7168, "K": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "B is the rank's column block of one global weight, scaled so that outputs are of order one",
        "odd sizes in one trial and a single row in another; the strides of the output are free",
    ),
)
