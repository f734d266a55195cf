"""Problem 014: GEMM + all-gather. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(A, B): replicated activations (M, K), and this rank's N/W columns of one global weight, scaled by 1/sqrt(K)."""
    M, N_local, K = ctx.size.M, max(1, ctx.size.N // ctx.world_size), ctx.size.K
    if ctx.variant == "ragged":
        M, N_local, K = max(1, M - 3), max(1, N_local - 5), max(1, K - 3)
    if ctx.variant == "edge":
        M = 1  # one decoded token
    if ctx.variant == "integers":
        return ctx.shared.integers(-2, 3, M, K, dtype=ctx.dtype), ctx.own.integers(-2, 3, K, N_local, dtype=ctx.dtype)
    return ctx.shared.values(M, K), ctx.own.values(K, N_local, scale=K**-0.5)


def cost(shape: Shape) -> Cost:
    """2 M K N/W operations, then an all-gather of one (M, N/W) block per rank. At least, A being replicated, the (K, N/W) weights
    are gathered where these are fewer.
    """
    M, N_local, K, b = shape.size.M, max(1, shape.size.N // shape.world_size), shape.size.K, shape.element_size
    output = M * N_local * shape.world_size
    return Cost(
        sent_bytes=(shape.world_size - 1) * M * N_local * b,
        least_sent_bytes=(shape.world_size - 1) * min(M, K) * N_local * b,
        flops=2 * M * K * N_local,
        memory_bytes=(M * K + K * N_local + output) * b,
        footprint_bytes=(M * K + K * N_local + M * N_local + 2 * output) * b,
    )


PROBLEM = Problem(
    title="Column-parallel GEMM with gathered output",
    category="tensor parallel",
    source="generic (Megatron-LM style column-parallel linear with output gathering)",
    sizes={
        "smoke": {"M": 64, "N": 64, "K": 32},
        "default": {"M": 1024, "N": 1024, "K": 512},
        "production": {"M": 4096, "N": 128256, "K": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "A is replicated, as a column-parallel layer has it (the original's differs by rank); B is scaled by 1/sqrt(K) so that "
        "outputs are of order one",
        "odd sizes in one trial and a single row in another",
    ),
)
