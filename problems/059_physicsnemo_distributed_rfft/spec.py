"""Problem 059: distributed 2-D real FFT. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(x, s, dim, norm, None): noise plus a smooth field on the first image; always float32.

    integers: four axes, "backward". wide: s = (None, None), "forward". ragged: odd block sizes, negative axes. edge: one image,
    rows zero-padded and columns truncated by s.
    """
    z, w = ctx.size, ctx.world_size
    batch, rows, cols = z.B, z.n0 // w, z.n1 // w
    s, dim, norm = (w * rows, w * cols), (1, 2), "ortho"
    if ctx.variant == "integers":
        norm = "backward"
    if ctx.variant == "wide":
        s, norm = (None, None), "forward"
    if ctx.variant == "ragged":
        rows, cols = rows - 1 + rows % 2, cols - 1 + cols % 2
        s, dim = (w * rows, w * cols), (-2, -1)
    if ctx.variant == "edge":
        batch, s = 1, (w * (rows + 1), w * cols - 3)

    scale = math.sqrt(z.n0 * z.n1) if norm == "forward" else 1.0
    x = ctx.own.values(batch, w * rows, cols, dtype=torch.float32) * scale
    x[0] += scale * smooth_field(ctx, w * rows, cols, w * cols)
    if ctx.variant == "integers":
        x, dim = x.unsqueeze(1), (-2, 3)
    return x, s, dim, norm, None


def smooth_field(ctx: Context, rows: int, cols: int, all_cols: int) -> torch.Tensor:
    """An offset and three plane waves of low frequency over the global image: this rank's columns."""
    h = torch.arange(rows, device=ctx.device)[:, None] / rows
    c = (torch.arange(cols, device=ctx.device) + ctx.rank * cols)[None, :] / all_cols
    field = torch.full((rows, cols), ctx.shared.real(0.2, 0.4), device=ctx.device)
    for _ in range(3):
        f0, f1, phase = ctx.shared.integer(0, 4), ctx.shared.integer(0, 4), ctx.shared.real(0.0, 2 * math.pi)
        field += 0.3 * torch.cos(2 * math.pi * (f0 * h + f1 * c) + phase)
    return field


def admissible(shape: Shape) -> str | None:
    z, w = shape.size, shape.world_size
    if z.n0 % w or z.n1 % w:
        return f"the {w} ranks must divide n0={z.n0} and n1={z.n1}"
    return None if z.n1 > 8 else f"n1={z.n1} must be above 8"


def cost(shape: Shape) -> Cost:
    """Three quarters of the complex transpose (the image is real: half the rows follow from the partner's half spectrum)."""
    z, w = shape.size, shape.world_size
    local = z.B * z.n0 * z.n1 / w
    return Cost(
        sent_bytes=0.75 * 8 * local * (w - 1) / w,
        flops=0.5 * 5 * local * (math.log2(z.n0) + math.log2(z.n1)),
        memory_bytes=4 * local + 2 * 8 * local + 8 * z.B * (z.n0 / w) * (z.n1 // 2 + 1),
        footprint_bytes=4 * local + 5 * 8 * local + 8 * z.B * (z.n0 / w) * (z.n1 // 2 + 1),
    )


PROBLEM = Problem(
    title="Forward 2-D real FFT of a column-sharded image, with one all-to-all transpose between the two 1-D passes",
    category="geometric/spatial",
    source="NVIDIA PhysicsNeMo (distributed FFT of model-parallel AFNO/FNO)",
    sizes={
        "smoke": {"B": 2, "n0": 48, "n1": 96},
        "default": {"B": 16, "n0": 1024, "n1": 1024},
        "production": {"B": 512, "n0": 720, "n1": 1440},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "all norms, negative axes, four axes, lengths None, padding, truncation occur; the original has only ortho and (1, 2)",
        "one image per batch carries a smooth field besides the noise; the batch is a dimension of its own",
    ),
    tags=("fft", "all-to-all"),
)
