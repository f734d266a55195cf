"""Problem 018: RMSNorm over a sharded hidden dimension. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(local_hidden_states, local_weight, variance_epsilon): rows of very different size, slices that grow with the rank.

    Which rank has the largest slice moves with the trial. Three-dimensional in the ragged trial.
    """
    import torch

    leading, N = (ctx.size.M,), ctx.size.N
    if ctx.variant == "ragged":
        leading, N = (3, max(1, ctx.size.M // 3 - 1)), max(1, N - 3)
    fp32 = torch.float32
    shift = ctx.shared.integer(0, ctx.world_size)
    epsilon = ctx.shared.choice((1e-6, 1e-5, 1e-4))
    row_scale = torch.exp2(ctx.shared.uniform(-4, 4, *leading, 1, dtype=fp32))
    if ctx.variant == "integers":
        row_scale = torch.exp2(ctx.shared.integers(-2, 3, *leading, 1).to(fp32))
    if ctx.variant == "edge":
        row_scale[::4] = epsilon**0.5  # mean squares near epsilon
        row_scale[::7] = 0.0
    rank_scale = 1 + (ctx.rank + shift) % ctx.world_size
    x = ctx.own.values(*leading, N, dtype=fp32) * row_scale * rank_scale
    weight = 1 + 0.1 * ctx.own.randn(N, dtype=fp32)
    return x.to(ctx.dtype), weight.to(ctx.dtype), epsilon


def cost(shape: Shape) -> Cost:
    """All-reduce of one fp32 per row. The reference holds fp32 copies of its slice."""
    M, N, b = shape.size.M, shape.size.N, shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * 4 * M,
        flops=5 * M * N,
        memory_bytes=(2 * M * N + N) * b,
        footprint_bytes=M * N * (3 * b + 8) + N * b + 8 * M,
    )


PROBLEM = Problem(
    title="RMSNorm over a hidden dimension sharded across ranks",
    category="tensor parallel",
    source="generic (Llama-style RMSNorm under tensor parallelism)",
    sizes={
        "smoke": {"M": 48, "N": 64},
        "default": {"M": 1024, "N": 1024},
        "production": {"M": 16384, "N": 1024},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "rows have log-uniform scales and slices a rank-dependent one, so that the statistic cannot be guessed locally; the "
        "original's rows and slices all have unit mean square",
        "epsilon varies by trial; one trial has rows whose mean square is near epsilon, and zero rows",
        "one trial has three-dimensional hidden states of odd width",
        "the weight is 1 + 0.1 times a normal number; the original's is centred on zero",
    ),
)
