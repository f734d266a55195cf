"""Problem 072: context-parallel Hyena operator. Sizes, inputs, tolerance, cost."""

import math
from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def draw_filters(ctx: Context, groups: int, taps: int) -> Any:
    """(groups, taps) normal filters of unit norm that decay exponentially, from one tenth to three filter lengths."""
    import torch

    spread = ctx.shared.uniform(math.log(0.1), math.log(3.0), groups, 1, dtype=torch.float32)
    time = torch.arange(taps, device=ctx.device, dtype=torch.float32) / taps
    filters = ctx.shared.randn(groups, taps, dtype=torch.float32) * torch.exp(-time / spread.exp())
    return (filters / filters.norm(dim=1, keepdim=True)).to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(x1_seq, x2_seq, v_seq, h, conv_bias, num_groups, group_dim, group, with_zigzag_splitting).

    ragged: contiguous layout with an odd local length. edge: two positions per rank, the longest causal filter (L + 1).
    integers and wide: four times as many channels per filter where the world size allows.
    """
    s, world_size = ctx.size, ctx.world_size
    groups, local = s.G, s.l
    if ctx.variant in ("integers", "wide") and groups % (4 * world_size) == 0:
        groups //= 4
    if ctx.variant == "ragged":
        local -= 1
    if ctx.variant == "edge":
        local = 2
    taps = min(s.F, local * world_size)
    if ctx.variant == "edge":
        taps = local * world_size + 1
    batch = s.B + 1 if ctx.variant == "ragged" else s.B
    x1, x2, v = (ctx.own.values(batch, s.D, local) for _ in range(3))
    h = draw_filters(ctx, groups, taps)
    bias = ctx.shared.randn(s.D)
    return x1, x2, v, h, bias, groups, s.D // groups, None, ctx.variant != "ragged"


def admissible(shape: Shape) -> str | None:
    """Groups divide over the ranks and the local length into two chunks."""
    s = shape.size
    if s.D % s.G:
        return f"D={s.D} channels do not form G={s.G} groups; make size.D a multiple of size.G"
    if s.G % shape.world_size:
        return f"G={s.G} filter groups do not divide over the ranks; make size.G a multiple of {shape.world_size}"
    if s.l % 2:
        return f"l={s.l} must be even to hold two zigzag chunks; change size.l"
    return None


def cost(shape: Shape) -> Cost:
    """Two exchanges (x2 * v before, the convolution after); real FFTs of length 2L at 2.5 n log2 n operations."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    local = s.B * s.D * s.l  # elements of one input, as many as of one channel-sharded tensor
    n = 2 * s.l * world_size
    taps = min(s.F, s.l * world_size)
    transforms = 2 * s.B * s.D / world_size + s.G / world_size
    return Cost(
        sent_bytes=2 * local * b * (world_size - 1) / world_size,
        flops=transforms * 2.5 * n * math.log2(n),
        memory_bytes=4 * local * b + s.G / world_size * taps * b,
        footprint_bytes=12 * local * b + s.G * taps * b + 4 * (s.B + 1) * s.D / world_size * n * 4,
    )


PROBLEM = Problem(
    title="Context-parallel Hyena operator: channel exchange, gating, long FFT convolution, gating, and back",
    category="context parallel",
    source="Evo 2 / Savanna (Hyena long-convolution operator with zigzag context parallelism)",
    sizes={
        "smoke": {"B": 2, "D": 24, "G": 12, "l": 32, "F": 64},
        "default": {"B": 1, "D": 1024, "G": 1024, "l": 2048, "F": 4096},
        "production": {"B": 1, "D": 4096, "G": 256, "l": 16384, "F": 131072},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "filters decay and have unit norm, drawn by trial and equal on all ranks; the original's are a fixed ramp up to 1024",
        "conv_bias is drawn by trial; the original's is a fixed ramp",
        "the filter is cut to the sequence length (F = min(size.F, L)), so that the convolution stays causal",
        "some trials use the contiguous layout and several channels per filter; the original only zigzag and one",
    ),
    tags=("all-to-all", "fft"),
)
