"""Problem 013: GEMM + all-reduce. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(A_local, B_local): blocks of A (M, W Kl) and of B (W Kl, N), B scaled so that A B has unit variance."""
    M, N, K_local = ctx.size.M, ctx.size.N, ctx.size.Kl
    if ctx.variant == "ragged":
        M, N, K_local = max(1, M - 3), max(1, N - 5), max(1, K_local - 3)
    if ctx.variant == "edge":
        M = 1  # one decoded token
    if ctx.variant == "integers":
        # -1, 0, 1: the partial sums stay below 256 and are exact in bfloat16
        return ctx.own.integers(-1, 2, M, K_local, dtype=ctx.dtype), ctx.own.integers(-1, 2, K_local, N, dtype=ctx.dtype)
    return ctx.own.values(M, K_local), ctx.own.values(K_local, N, scale=(ctx.world_size * K_local) ** -0.5)


def cost(shape: Shape) -> Cost:
    """A GEMM of 2 M N Kl operations, then an all-reduce (reduce-scatter and all-gather) of M N elements.

    At least M N elements must leave every rank; about so much suffices if the switch reduces and multicasts. With a short
    contraction, gathering A and B is less.
    """
    M, N, K_local, b = shape.size.M, shape.size.N, shape.size.Kl, shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * M * N * b,
        least_sent_bytes=min(M * N, (shape.world_size - 1) * (M + N) * K_local) * b,
        flops=2 * M * N * K_local + share * M * N,
        memory_bytes=(M * K_local + K_local * N + M * N) * b,
        footprint_bytes=(M * K_local + K_local * N + 2 * M * N) * b,
    )


PROBLEM = Problem(
    title="Row-parallel linear layer: local GEMM followed by a sum all-reduce",
    category="tensor parallel",
    source="generic (Megatron-LM style row-parallel linear)",
    sizes={
        "smoke": {"M": 64, "N": 48, "Kl": 32},
        "default": {"M": 1024, "N": 1024, "Kl": 512},
        "production": {"M": 8192, "N": 8192, "Kl": 3584},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "B is scaled by 1/sqrt(W Kl) so that the output has unit variance; the original's std of 64 makes legitimate bf16 sum "
        "orders disagree",
        "odd sizes in one trial and a single row in another",
    ),
)
