"""Problem 044: average of int8-quantised gradients. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A heavy-tailed gradient and a block size.

    Every block has one outlier of 127 steps among elements of about 3 steps, so that quantisation moves most elements by many
    percent. The step is a power of two between 2**-26 and 4, similar on all ranks: then scale and codes are exact and do not
    depend on how an implementation divides, and neither do the fp32 sums. The last block is short.

    integers: elements of k + 0.5 steps (ties). wide: elements over a large range. ragged: an odd block size and a 2-D
    gradient. edge: blocks of zeros, on all ranks or on this one, of a single non-zero element, and below the clamp of 1e-8.
    """
    import torch

    n, block = ctx.size.n, ctx.size.block_size
    if ctx.variant == "ragged":
        n, block = (n - 5) // 7 * 7, block - 1
    num_blocks = -(-n // block)
    jitter = ctx.own.integers(0, 3, num_blocks)
    step = torch.exp2((ctx.shared.integers(-26, 1, num_blocks) + jitter).float())
    if ctx.variant == "integers":
        steps = ctx.own.integers(-126, 126, num_blocks, block).float() + 0.5
    else:
        steps = (3 * ctx.own.values(num_blocks, block, dtype=torch.float32)).clamp(-100, 100)
    last = n - (num_blocks - 1) * block
    where = ctx.own.integers(0, block, num_blocks, 1)
    where[-1] %= last
    outlier = 127.0 * (2 * ctx.own.integers(0, 2, num_blocks, 1).float() - 1)
    if ctx.variant == "edge":
        kind = ctx.shared.integers(0, 5, num_blocks, 1)
        kind = torch.where((kind == 4) & (ctx.own.integers(0, 2, num_blocks, 1) == 1), 1, kind)
        steps[(kind == 1).expand_as(steps) | (kind == 2).expand_as(steps)] = 0.0
        outlier = outlier * (kind != 1)
    x = steps.scatter_(1, where, outlier) * step.unsqueeze(1)
    if ctx.variant == "edge":
        # Below the clamp the step is 1e-8 / 127; these are 94.6, 47.3 and 23.7 of it, safely away from halves. All are
        # positive: that step is no power of two, and sums that cancel would show its rounding.
        tiny = torch.exp2(-27.0 - ctx.own.integers(0, 3, num_blocks, block).float())
        x = torch.where(kind == 3, tiny, x)
    x = x.view(-1)[:n].to(ctx.dtype)
    return x.view(7, -1) if ctx.variant == "ragged" else x, block


def cost(shape: Shape) -> Cost:
    """All-to-all of int8 codes with fp32 scales to the owners of slices, then all-gather of finished averages."""
    n, b, block, world_size = shape.size.n, shape.element_size, shape.size.block_size, shape.world_size
    code = 1 + 4 / block
    return Cost(
        sent_bytes=(world_size - 1) / world_size * n * (code + b),
        flops=6 * n,
        memory_bytes=n * (b + 2 * code + b),
        # Input and padded copy, fp32 elements, quotients and rounded ones, codes, fp32 sums and averages, result.
        footprint_bytes=n * (3 * b + 6 * 4 + 1),
    )


PROBLEM = Problem(
    title="Average of block-wise int8 quantised gradients over all ranks",
    category="data parallel",
    source="generic (DeepSpeed ZeRO++ style quantised gradient communication)",
    sizes={
        "smoke": {"n": 10021, "block_size": 64},
        "default": {"n": 1048576, "block_size": 128},
        "production": {"n": 268435496, "block_size": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=lambda shape: None if shape.size.block_size > 1 else "block_size=1 leaves nothing to quantise; set 2 or more",
    tolerance=Tolerance(elementwise=True, floor_ulps=3.0),
    deviations=(
        "gradients are heavy-tailed, with an outlier per block, so that quantisation shows; the original's differs from a "
        "plain average in a handful of elements",
        "block maxima are 127 times a power of two, so that true division and reciprocals agree",
        "block magnitudes range from 1e-6 to 1e2; one trial has exact halves, one zero, single-element and clamped blocks",
        "one trial has an odd block size and a 2-D gradient",
    ),
    tags=("all-reduce", "quantisation"),
)
