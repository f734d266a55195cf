"""Problem 016: GEMM + reduce-scatter. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(A_local, B_local): blocks of A (M, K) and of B (K, N), B scaled so that A B has unit variance."""
    W = ctx.world_size
    M, N, K_local = ctx.size.M, ctx.size.N, max(1, ctx.size.K // W)
    if ctx.variant == "ragged":
        M, N, K_local = W * max(1, M // W - 3), max(1, N - 5), max(1, K_local - 3)
    if ctx.variant == "edge":
        M = W  # one row per rank
    if ctx.variant == "integers":
        # -1, 0, 1: the partial sums stay below 256 and are exact in bfloat16
        return ctx.own.integers(-1, 2, M, K_local, dtype=ctx.dtype), ctx.own.integers(-1, 2, K_local, N, dtype=ctx.dtype)
    return ctx.own.values(M, K_local), ctx.own.values(K_local, N, scale=(W * K_local) ** -0.5)


def admissible(shape: Shape) -> str | None:
    if shape.size.M % shape.world_size:
        return f"M={shape.size.M} is not divisible by the number of ranks"
    return None


def cost(shape: Shape) -> Cost:
    """A GEMM of 2 M N K/W operations, then a reduce-scatter of M N elements.

    At least, with a short contraction, each peer's rows of A and all of B, which are less than its rows of the product.
    """
    W, b = shape.world_size, shape.element_size
    M, N, K_local = shape.size.M, shape.size.N, max(1, shape.size.K // W)
    rows = M / W
    return Cost(
        sent_bytes=(W - 1) * rows * N * b,
        least_sent_bytes=(W - 1) * min(rows * N, (rows + N) * K_local) * b,
        flops=2 * M * N * K_local + (W - 1) * rows * N,
        memory_bytes=(M * K_local + K_local * N + rows * N) * b,
        footprint_bytes=(M * K_local + K_local * N + 2 * M * N + rows * N) * b,
    )


PROBLEM = Problem(
    title="K-sharded GEMM followed by a sum reduce-scatter over rows",
    category="tensor parallel",
    source="generic (Megatron-LM style row-parallel linear under sequence parallelism)",
    sizes={
        "smoke": {"M": 64, "N": 48, "K": 64},
        "default": {"M": 1024, "N": 1024, "K": 512},
        "production": {"M": 8192, "N": 8192, "K": 28672},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "B is scaled by 1/sqrt(K) so that the output has unit variance; the original's std of 22.6 makes legitimate bf16 sum "
        "orders disagree",
        "odd sizes in one trial and one row per rank in another",
    ),
)
