"""Problem 060: distributed inverse 2-D real FFT. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(x, s, dim, norm, None): an arbitrary complex64 half spectrum, not Hermitian in its self-conjugate columns.

    integers: "backward". wide: "forward". ragged: other row and column counts (odd ones where the ranks allow it). edge: one
    row per rank, few columns kept as after a spectral truncation, non-negative axes.
    """
    z, w = ctx.size, ctx.world_size
    batch, channels, rows, cols = z.B, z.C, z.n0 // w, z.n1 // w
    dim, norm = (-2, -1), {"integers": "backward", "wide": "forward"}.get(ctx.variant, "ortho")
    if ctx.variant == "ragged":
        rows, cols = rows + 1, cols - 1
    if ctx.variant == "edge":
        batch, channels, rows, dim = 1, 1, 1, (2, 3)
    n0, n1 = w * rows, w * cols
    kept = max(1, n1 // 4) if ctx.variant == "edge" else n1 // 2 + 1
    scale = math.sqrt(n0 * n1) ** {"ortho": 0, "backward": 1, "forward": -1}[norm]  # the image is of order one
    parts = ctx.own.values(batch, channels, rows, kept, 2, dtype=torch.float32) * scale
    return torch.view_as_complex(parts), (n0, n1), dim, norm, None


def admissible(shape: Shape) -> str | None:
    z, w = shape.size, shape.world_size
    if z.n0 % w or z.n1 % w:
        return f"the {w} ranks must divide n0={z.n0} and n1={z.n1}"
    return None if z.n1 >= 2 * w else f"n1={z.n1} must be at least twice the {w} ranks"


def cost(shape: Shape) -> Cost:
    """One all-to-all of the complex row transforms; completing the spectrum needs no exchange (double the inner columns).

    At least three quarters of it. The image is real: only the sum of a row's transform and the conjugate of its partner row's
    counts. Half the rows of the half spectrum to the partner's rank, then the sums to the owners of the columns, come to that.
    """
    z, w = shape.size, shape.world_size
    images = z.B * z.C
    local = images * z.n0 * z.n1 / w
    half = images * (z.n0 / w) * (z.n1 // 2 + 1)
    return Cost(
        sent_bytes=8 * local * (w - 1) / w,
        least_sent_bytes=0.75 * 8 * local * (w - 1) / w,
        flops=0.5 * 5 * local * (math.log2(z.n0) + math.log2(z.n1)),
        memory_bytes=8 * half + 2 * 8 * local + 4 * local,
        # the reference gathers the completed spectrum: buffer, joined copy, re-ordered half; then the local passes
        footprint_bytes=8 * half + 8 * local * w * 3 + 8 * local * 6,
    )


PROBLEM = Problem(
    title="Inverse 2-D real FFT from a row-sharded half spectrum: Hermitian completion, row pass, all-to-all, column pass",
    category="geometric/spatial",
    source="NVIDIA PhysicsNeMo (distributed inverse FFT of model-parallel AFNO/FNO)",
    sizes={
        "smoke": {"B": 1, "C": 2, "n0": 24, "n1": 48},
        "default": {"B": 2, "C": 10, "n0": 720, "n1": 1440},
        "production": {"B": 1, "C": 512, "n0": 720, "n1": 1440},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "the spectrum is an arbitrary complex one, as after a spectral filter; the original's is the transform of a real "
        "image, where mishandled self-conjugate columns do not show",
        "all norms, other sizes and a spectrum with few columns occur; B, C, n0, n1 are dimensions",
    ),
    tags=("fft", "all-to-all"),
)
