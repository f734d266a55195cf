"""Problem 019: block-wise FP8 quantisation + all-gather. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(local_tensor, block_size): blocks of very different size, some zero, some constant, some with one huge outlier."""
    import torch

    M, N, block = ctx.size.M, ctx.size.N, ctx.size.block_size
    if ctx.variant == "integers":
        block //= 2
    if ctx.variant == "ragged":
        M, N, block = max(1, M - 3), max(block // 4, N - block // 4), block // 4
    if ctx.variant == "edge":
        M = 1

    fp32 = torch.float32
    x = ctx.own.values(M, N // block, block, dtype=fp32)
    low, high = (-30, 20) if ctx.variant == "wide" else (-10, 6)
    magnitude = torch.exp2(ctx.own.integers(low, high, M, N // block, 1).to(fp32))
    kind = ctx.own.uniform(0, 1, M, N // block, 1, dtype=fp32)
    outlier_at = ctx.own.integers(0, block, M, N // block, 1)
    is_outlier = torch.arange(block, device=ctx.device) == outlier_at
    x = torch.where((kind > 0.8) & is_outlier, 2.0e4 * (1 + x.abs()), x)  # the rest become denormal codes and zeros
    x = torch.where(kind < 0.08, x[..., :1].expand_as(x), x)
    x = torch.where(kind < 0.04, 0.0, x)
    if ctx.variant == "edge" and ctx.rank == ctx.shared.integer(0, ctx.world_size):
        x = torch.zeros_like(x)
    return (x * magnitude).view(M, N).to(ctx.dtype), block


def admissible(shape: Shape) -> str | None:
    block = shape.size.block_size
    if block < 16 or block & (block - 1):
        return f"block_size={block} is not a power of two of at least 16"
    if shape.size.N % block:
        return f"N={shape.size.N} is not divisible by block_size={block}"
    return None


def cost(shape: Shape) -> Cost:
    """All-gather of one byte per element and four per block. The reference holds three fp32 copies of its tensor."""
    M, N, block, b = shape.size.M, shape.size.N, shape.size.block_size, shape.element_size
    compressed = M * N + 4 * M * N / block
    return Cost(
        sent_bytes=(shape.world_size - 1) * compressed,
        flops=3 * M * N,
        memory_bytes=M * N * b + shape.world_size * compressed,
        footprint_bytes=M * N * (b + 12) + (1 + shape.world_size) * compressed,
    )


PROBLEM = Problem(
    title="Block-wise FP8 (E4M3) quantisation of a local tensor and all-gather of codes and scales",
    category="tensor parallel",
    source="DeepSeek-V3 style 1x128 activation quantisation, used as a compressed all-gather",
    sizes={
        "smoke": {"M": 32, "N": 256, "block_size": 128},
        "default": {"M": 1024, "N": 1024, "block_size": 128},
        "production": {"M": 8192, "N": 7168, "block_size": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    # a few codes may round the other way, by one step; scales of every magnitude agree to the last places, which approximate
    # divisions and products with a reciprocal get wrong by one or two
    tolerance=(Tolerance(floor_ulps=1.0), Tolerance(floor_ulps=4.0, elementwise=True)),
    deviations=(
        "blocks have log-uniform magnitudes, and some are zero, constant or dominated by one outlier; the original's are all "
        "alike, so one constant passes for every scale",
        "block_size varies by trial; the original's is always 128; one trial has a single row per rank, all zero on one of them",
        "scales are compared relatively; the original's absolute tolerance exceeds them",
    ),
)
