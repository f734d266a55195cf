"""Problem 076: channel-parallel 3-D convolution. Sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape

KERNEL = 3


def make_inputs(ctx: Context) -> tuple:
    """(input, weight, bias, stride, padding, dilation, groups).

    plain: stride 1 without padding. integers: padding 1. wide: stride 2 in time, per-axis padding. ragged: odd extents, an
    uneven kernel, no bias. edge: dilation 2, two convolution groups, an output of one frame.
    """
    s = ctx.size
    channels = s.C // ctx.world_size
    extents = (s.T, s.H, s.Wd)
    kernel = (KERNEL,) * 3
    stride, padding, dilation, groups = 1, 0, 1, 1
    with_bias = True
    if ctx.variant == "integers":
        padding = 1
    if ctx.variant == "wide":
        stride, padding = (2, 1, 1), (0, 1, 1)
    if ctx.variant == "ragged":
        extents, kernel, with_bias = (s.T, s.H - 1, s.Wd - 3), (KERNEL, 1, KERNEL), False
    if ctx.variant == "edge":
        extents, dilation = (5, s.H, s.Wd), 2
        groups = 2 if channels % 2 == 0 else 1
    taps = s.C // groups * kernel[0] * kernel[1] * kernel[2]
    x = ctx.own.values(s.B, channels, *extents)
    weight = ctx.own.values(s.C, channels // groups, *kernel, scale=taps**-0.5)
    bias = ctx.shared.values(s.C) if with_bias else None
    return x, weight, bias, stride, padding, dilation, groups


def admissible(shape: Shape) -> str | None:
    """Channels divide over the ranks, extents hold the kernel."""
    s = shape.size
    if s.C % shape.world_size:
        return f"C={s.C} channels do not divide over the ranks; make size.C a multiple of {shape.world_size}"
    if s.C % 2 or s.T < KERNEL or min(s.H, s.Wd) < 2 * KERNEL:
        return f"C must be even, T at least {KERNEL}, H and Wd at least {2 * KERNEL}; change size.C, size.T, size.H or size.Wd"
    return None


def cost(shape: Shape) -> Cost:
    """An all-reduce of the output; 2 ci 27 operations per output element. At least its addends must leave every rank, or on few
    ranks inputs and weights are gathered.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    channels = s.C / world_size
    taps = KERNEL**3
    inputs = s.B * channels * s.T * s.H * s.Wd
    outputs = s.B * s.C * (s.T - KERNEL + 1) * (s.H - KERNEL + 1) * (s.Wd - KERNEL + 1)
    weights = s.C * channels * taps
    return Cost(
        sent_bytes=2 * (world_size - 1) / world_size * outputs * b,
        least_sent_bytes=min(outputs, (world_size - 1) * (inputs + weights)) * b,
        flops=2 * outputs * channels * taps,
        memory_bytes=(inputs + weights + outputs) * b,
        footprint_bytes=(2 * inputs + 2 * weights + 4 * outputs) * b,
    )


PROBLEM = Problem(
    title="3-D convolution with the input channels sharded over the ranks: partial convolution, all-reduce, bias",
    category="tensor parallel",
    source="Open-Sora (video VAE, channel-parallel Conv3d)",
    sizes={
        "smoke": {"B": 1, "C": 16, "T": 5, "H": 10, "Wd": 10},
        "default": {"B": 1, "C": 512, "T": 19, "H": 66, "Wd": 66},
        "production": {"B": 1, "C": 512, "T": 35, "H": 130, "Wd": 130},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "weights are scaled by 1/sqrt(taps) and the bias is of the order of the output; the original's outputs have a standard "
        "deviation of 118, where rounding exceeds its tolerance and the bias is below it",
        "trials vary stride, padding, dilation, kernel, convolution groups and the presence of the bias",
        "C is a dimension of the size and the world size must divide it; the original drops channels otherwise",
    ),
    tags=("all-reduce", "convolution"),
)
