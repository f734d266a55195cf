"""Problem 087: 2-D convolution with exchange of boundary rows. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

KERNEL, PADDING = 3, 1


def make_inputs(ctx: Context) -> tuple:
    """(x, weight, bias, stride, padding, group): weights and bias are one layer's, equal on all ranks.

    integers: no bias. wide: kernel 5, padding 2. ragged: stride 2, odd width, two images, and where the world size allows
    two groups of ranks with an image each. edge: strips of two rows, all of them boundary; no padding in every second one.
    """
    s, world_size = ctx.size, ctx.world_size
    batch, height, width = s.B, s.h, s.Wd
    kernel, padding, stride = KERNEL, PADDING, 1
    group = None
    if ctx.variant in ("wide", "edge"):
        kernel, padding = 5, 2
    if ctx.variant == "ragged":
        batch, width, stride = s.B + 1, s.Wd - 3, 2
        if world_size >= 4 and world_size % 2 == 0:
            half = world_size // 2
            first = ctx.rank // half * half
            group = ctx.group(range(first, first + half))
    if ctx.variant == "edge":
        height = 2
        if ctx.trial // 5 % 2:
            height, kernel, padding = s.h, KERNEL, 0
    x = ctx.own.values(batch, s.C, height, width)
    weight = ctx.shared.values(s.C, s.C, kernel, kernel, scale=(s.C * kernel**2) ** -0.5)
    bias = None if ctx.variant == "integers" else ctx.shared.values(s.C)
    return x, weight, bias, stride, padding, group


def observe(before: Any, output: Any, after: Any) -> list[Any]:
    """The whole strip, and on their own the rows that the exchange decides: the outermost ones."""
    import torch

    stride, padding = before[3:5]
    rows = max(1, -(-padding // stride))
    return [output, torch.cat([output[:, :, :rows], output[:, :, -rows:]], dim=2)]


def admissible(shape: Shape) -> str | None:
    """Strips hold the kernel and divide by the stride of 2."""
    s = shape.size
    if s.h % 2 or s.h < 4 or s.Wd < 8:
        return f"h={s.h} must be even and at least 4, Wd={s.Wd} at least 8; change size.h or size.Wd"
    return None


def cost(shape: Shape) -> Cost:
    """One boundary, what the end strips send (others send two); 2 C 9 operations per output element."""
    s, b = shape.size, shape.element_size
    elements = s.B * s.C * s.h * s.Wd
    weights = s.C * s.C * KERNEL**2
    boundary = s.B * s.C * PADDING * s.Wd
    return Cost(
        sent_bytes=boundary * b,
        flops=2 * elements * s.C * KERNEL**2,
        memory_bytes=(2 * elements + weights + boundary) * b,
        footprint_bytes=(5 * elements + 2 * weights + 2 * (shape.world_size + 2) * boundary) * b,
    )


PROBLEM = Problem(
    title="2-D convolution on an image split by rows over the ranks, with exchange of boundary rows",
    category="geometric/spatial",
    source="patch-parallel diffusion UNets (as in DistriFusion)",
    sizes={
        "smoke": {"B": 1, "C": 8, "h": 8, "Wd": 16},
        "default": {"B": 1, "C": 1280, "h": 32, "Wd": 128},
        "production": {"B": 2, "C": 320, "h": 64, "Wd": 512},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    observe=observe,
    # sums of few products in fp32: twice the factor would let boundaries travel in 8 bits
    tolerance=Tolerance(factor=3.0),
    deviations=(
        "weights and bias are the same on all ranks, as one layer's are, and scaled; the original draws them by rank",
        "the outermost rows are also compared on their own: they are a small part of the output",
        "h does not depend on the world size; one trial uses two groups of ranks with an image each",
        "trials vary stride, kernel, padding, batch and the presence of the bias",
    ),
    tags=("all-gather", "halo exchange", "convolution"),
)
