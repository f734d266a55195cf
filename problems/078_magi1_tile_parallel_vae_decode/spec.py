"""Problem 078: tile-parallel video decoding. Sizes, inputs, tolerance, cost."""

import math
from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def draw_latent(ctx: Context, *shape: int) -> Any:
    """A smooth latent common to all ranks plus noise of each rank, bfloat16 whatever dtype is requested."""
    import torch
    import torch.nn.functional as F

    coarse = [max(1, -(-n // 4)) for n in shape[2:]]
    smooth = F.interpolate(ctx.shared.values(*shape[:2], *coarse, dtype=torch.float32), size=shape[2:], mode="trilinear")
    return (smooth + 0.7 * ctx.own.values(*shape, dtype=torch.float32)).to(torch.bfloat16)


def make_inputs(ctx: Context) -> tuple:
    """(z, tile extents, overlap factors, upsampling factors, sr_ratio, first_frame_as_image).

    integers: overlap in time. wide: one slab of tiles with sr_ratio 2, two channels. ragged: extents that cut the border
    tiles unevenly, the first-frame flag, overlap in time. edge: a single tile, fewer than ranks.
    """
    s = ctx.size
    channels, extents = s.C, [s.T, s.H, s.Wd]
    spatial, temporal = s.spatial_overlap_percent / 100, s.temporal_overlap_percent / 100
    sr_ratio, first_frame = 1, False
    if ctx.variant in ("integers", "ragged"):
        temporal = 0.34
    if ctx.variant == "wide":
        sr_ratio, channels, extents[0] = 2, 2, min(s.T, s.lt)
    if ctx.variant == "ragged":
        extents, first_frame = [s.T, s.H - 3, s.Wd - 5], True
    if ctx.variant == "edge":
        extents = [int(s.lt * (1 - temporal)), int(s.lh * (1 - spatial)) - 1, int(s.lw * (1 - spatial))]
    z = draw_latent(ctx, s.B, channels, *extents)
    return z, s.lt, s.lh, s.lw, spatial, temporal, s.su, s.tu, sr_ratio, first_frame


def admissible(shape: Shape) -> str | None:
    """Tiles keep a stride in every trial."""
    s = shape.size
    if not (0 <= s.spatial_overlap_percent <= 50 and 0 <= s.temporal_overlap_percent <= 50):
        return "overlaps must lie between 0 and 50 percent; change size.spatial_overlap_percent or temporal_overlap_percent"
    if s.lt < 2 or s.lh < 4 or s.lw < 4 or s.H < 6 or s.Wd < 8:
        return "tiles need lt >= 2, lh and lw >= 4, the latent H >= 6 and Wd >= 8; change the size"
    return None


def axis(extent: int, tile: int, overlap: float, factor: int) -> tuple[int, int]:
    """(decoded pixels over all tiles, output pixels) along one axis."""
    stride = int(tile * (1 - overlap))
    kept = tile * factor - int(tile * factor * overlap)
    sizes = [min(tile, extent - start) * factor for start in range(0, extent, stride)]
    return sum(sizes), sum(min(size, kept) for size in sizes)


def cost(shape: Shape) -> Cost:
    """An all-gather of the finished video; 21 operations per interpolated value of three channels, 3 per blended one.

    Decoding is cheap here: it takes least to send three channels of the own latent tiles and to decode everything everywhere.
    """
    s, world_size = shape.size, shape.world_size
    spatial, temporal = s.spatial_overlap_percent / 100, s.temporal_overlap_percent / 100
    axes = [axis(s.T, s.lt, temporal, s.tu), axis(s.H, s.lh, spatial, s.su), axis(s.Wd, s.lw, spatial, s.su)]
    decoded = 3 * s.B * math.prod(a[0] for a in axes)
    output = 3 * s.B * math.prod(a[1] for a in axes)
    latents = decoded / (s.tu * s.su**2)
    b = 2  # bfloat16 whatever dtype is requested
    return Cost(
        sent_bytes=(world_size - 1) * output / world_size * b,
        least_sent_bytes=(world_size - 1) * latents / world_size * b,
        flops=(21 * output + 3 * (decoded - output)) / world_size,
        memory_bytes=output * b,
        footprint_bytes=(2.2 * decoded + 4.4 * output) * b + decoded / world_size * s.C / 3 * 4,
    )


PROBLEM = Problem(
    title="Tile-parallel video decoding: decode overlapping tiles, gather, blend, gather, stitch",
    category="geometric/spatial",
    source="MAGI-1 (tile-parallel VAE)",
    sizes={
        "smoke": {
            "B": 1,
            "C": 4,
            "T": 5,
            "H": 22,
            "Wd": 22,
            "lt": 4,
            "lh": 8,
            "lw": 8,
            "spatial_overlap_percent": 25,
            "temporal_overlap_percent": 25,
            "su": 2,
            "tu": 2,
        },
        "default": {
            "B": 1,
            "C": 16,
            "T": 6,
            "H": 90,
            "Wd": 90,
            "lt": 3,
            "lh": 32,
            "lw": 32,
            "spatial_overlap_percent": 25,
            "temporal_overlap_percent": 0,
            "su": 8,
            "tu": 4,
        },
        "production": {
            "B": 1,
            "C": 16,
            "T": 24,
            "H": 90,
            "Wd": 160,
            "lt": 8,
            "lh": 32,
            "lw": 32,
            "spatial_overlap_percent": 25,
            "temporal_overlap_percent": 25,
            "su": 8,
            "tu": 4,
        },
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "latents share a smooth part and differ by rank in noise; the original's are unrelated white noise (in production all "
        "ranks hold the same latent, but then no rank would need another)",
        "trials vary the temporal overlap, the first-frame flag, sr_ratio, the channel count and ragged tile counts",
        "tile shapes follow from the arguments and are not exchanged",
    ),
    tags=("all-gather",),
)
