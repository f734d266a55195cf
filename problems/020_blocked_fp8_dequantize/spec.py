"""Problem 020: block-wise FP8 dequantisation + all-to-all. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(local_y, local_s, block_size): block-quantised random data of log-uniform block magnitudes, with some zero blocks.

    float8_e4m3fn codes and fp32 scales if the dimension fp8 is 1, otherwise the same pairs rounded to the requested dtype.
    """
    import torch

    W, M, N, block = ctx.world_size, ctx.size.M, ctx.size.N, ctx.size.block_size
    if ctx.variant == "integers":
        block //= 2
    if ctx.variant == "ragged":
        M, N = 8 * max(1, M // 8 - 1), max(block // 8, N - block // 8)  # blocks span rows
    if ctx.variant == "edge" and N % block == 0:
        M = 1

    fp32 = torch.float32
    num_blocks = W * M * N // block
    low, high = (-12, 12) if ctx.variant == "wide" else (-3, 4)
    magnitude = torch.exp2(ctx.own.integers(low, high, num_blocks, 1).to(fp32))
    is_zero = ctx.own.uniform(0, 1, num_blocks, 1, dtype=fp32) < (0.5 if ctx.variant == "edge" else 0.05)
    x = torch.where(is_zero, 0.0, ctx.own.values(num_blocks, block, dtype=fp32) * magnitude)
    scales = x.abs().amax(dim=1, keepdim=True) / 448
    if ctx.variant == "integers":
        scales = torch.where(is_zero, 0.0, magnitude)  # powers of two, which leave small integers as codes
    codes = (x / torch.where(scales == 0, 1.0, scales)).to(torch.float8_e4m3fn)
    local_y, local_s = codes.view(W, M, N), scales.view(W, -1)
    if not ctx.size.fp8:
        local_y, local_s = local_y.to(ctx.dtype), local_s.to(ctx.dtype)
    return local_y, local_s, block


def admissible(shape: Shape) -> str | None:
    size = shape.size
    if size.block_size < 16 or size.block_size & (size.block_size - 1):
        return f"block_size={size.block_size} is not a power of two of at least 16"
    if size.M * size.N % size.block_size:
        return f"M*N={size.M * size.N} is not divisible by block_size={size.block_size}"
    if size.N % (size.block_size // 8):
        return f"N={size.N} is not divisible by block_size/8={size.block_size // 8}"
    if size.fp8 not in (0, 1):
        return f"fp8={size.fp8} is neither 0 (requested dtype) nor 1 (float8_e4m3fn)"
    return None


def cost(shape: Shape) -> Cost:
    """All-to-all of undecoded values and scales (the reference sends fp32, after decoding)."""
    W, elements, blocks = shape.world_size, shape.size.M * shape.size.N, shape.size.M * shape.size.N / shape.size.block_size
    b, scale_bytes = (1, 4) if shape.size.fp8 else (shape.element_size, shape.element_size)
    encoded = elements * b + blocks * scale_bytes
    return Cost(
        sent_bytes=(W - 1) * encoded,
        flops=W * elements,
        memory_bytes=W * (encoded + 4 * elements),
        footprint_bytes=W * (encoded + 12 * elements),
    )


PROBLEM = Problem(
    title="Block-wise dequantisation to fp32 followed by an equal all-to-all",
    category="tensor parallel",
    source="DeepSeek-V3 style block-scaled FP8 dequantisation before a token exchange",
    sizes={
        "smoke": {"M": 16, "N": 128, "block_size": 128, "fp8": 1},
        "default": {"M": 1024, "N": 1024, "block_size": 128, "fp8": 1},
        "production": {"M": 4096, "N": 7168, "block_size": 128, "fp8": 1},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    tolerance=Tolerance(exact=True),
    deviations=(
        "values are float8_e4m3fn codes with positive fp32 scales, made by block quantisation; the original's are normal "
        "numbers for both, in the requested dtype (size.fp8=0 gives its dtypes)",
        "outputs are compared bit for bit, each being one fp32 product; only the final values count, not what is exchanged",
        "block_size varies by trial, and blocks span rows in one",
    ),
)
