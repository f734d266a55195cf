"""Problem 062: distributed spherical convolution. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.problem import Context, Cost, Problem, Shape

RADIUS = 3  # of the filter, in steps of the latitude grid


def azimuth_size(shape: Shape) -> int:
    """A at the nominal layout; the polar group has Q = W / A ranks."""
    return shape.size.A if shape.world_size % shape.size.A == 0 else 1


def make_inputs(ctx: Context) -> tuple:
    """Rank = polar * A + azimuth; float32 whatever dtype is asked for; filter, weight and bias equal where they are shared.

    integers: two channel groups. wide: half the output points per axis. ragged: sizes that neither A nor Q divides. edge: polar
    splitting only, few output latitudes, no bias.
    """
    z, world = ctx.size, ctx.world_size
    num_azimuth = 1 if ctx.variant == "edge" else azimuth_size(ctx)
    num_polar = world // num_azimuth
    polar, azimuth = divmod(ctx.rank, num_azimuth)
    channels, groups, nlat_in, nlon_in = z.C, 1, z.nlat, z.nlon
    if ctx.variant == "integers":
        groups = 2
    if ctx.variant == "ragged":
        channels, nlat_in, nlon_in = channels + 1, nlat_in + 1, nlon_in + 1
    nlat_out, nlon_out = nlat_in, nlon_in
    if ctx.variant == "wide":
        nlat_out, nlon_out = nlat_in // 2, nlon_in // 2
    if ctx.variant == "edge":
        nlat_out = 3 * max(num_polar - 1, 1)  # where equal pieces would leave the last rank nothing

    latitudes = split_sizes(nlat_in, num_polar)
    w_in = split_sizes(nlon_in, num_azimuth)[azimuth]
    x = ctx.own.values(z.B, channels, latitudes[polar], w_in, dtype=torch.float32)
    first = sum(latitudes[:polar])
    psi = local_filter(ctx, z.K, nlat_out, nlat_in, nlon_in, range(first, first + latitudes[polar]))
    fan_in = channels // groups * z.K
    weight = ctx.shared.randn(channels, channels // groups, z.K, scale=fan_in**-0.5, dtype=torch.float32)
    bias = None if ctx.variant == "edge" else ctx.shared.randn(channels, scale=0.3, dtype=torch.float32)
    azimuth_group = ctx.group(range(polar * num_azimuth, (polar + 1) * num_azimuth))
    polar_group = ctx.group(range(azimuth, world, num_azimuth))
    return x, psi, weight, groups, nlon_out, nlon_in, azimuth_group, polar_group, bias


def local_filter(ctx: Context, basis: int, nlat_out: int, nlat_in: int, nlon: int, latitudes: range) -> torch.Tensor:
    """Sparse (K, nlat_out, len(latitudes) * nlon): K overlapping rings of compact support around each output point.

    A ring's weight is a hat function of the great-circle distance times the area of the input point and a random factor (so
    that a mirrored filter differs), normalised to unit norm over the whole sphere for each (k, latitude).
    """
    theta_in = math.pi * (torch.arange(nlat_in, device=ctx.device) + 0.5) / nlat_in
    theta_out = (math.pi * (torch.arange(nlat_out, device=ctx.device) + 0.5) / nlat_out)[:, None, None]
    phi = 2 * math.pi * torch.arange(nlon, device=ctx.device) / nlon
    at = theta_in[None, :, None]
    cosine = torch.cos(theta_out) * torch.cos(at) + torch.sin(theta_out) * torch.sin(at) * torch.cos(phi)
    distance = torch.acos(cosine.clamp(-1.0, 1.0))  # (nlat_out, nlat_in, nlon)
    step = RADIUS * math.pi / nlat_in / basis
    factors = ctx.stream(f"filter at latitude {latitudes.start}")
    indices, values = [], []
    for k in range(basis):
        ring = (1 - (distance - k * step).abs() / (1.5 * step)).clamp(min=0.0) * torch.sin(at)
        ring /= ring.flatten(1).norm(dim=1).clamp(min=1e-6)[:, None, None]
        ring = ring[:, latitudes.start : latitudes.stop].flatten(1)
        t, column = ring.nonzero(as_tuple=True)
        indices.append(torch.stack([torch.full_like(t, k), t, column]))
        values.append(ring[t, column] * factors.uniform(0.5, 1.5, len(t), dtype=torch.float32))
    shape = (basis, nlat_out, len(latitudes) * nlon)
    return torch.sparse_coo_tensor(torch.cat(indices, dim=1), torch.cat(values), shape, check_invariants=True).coalesce()


def split_sizes(size: int, parts: int) -> list[int]:
    """The contract's rule: equal pieces of the rounded-up share and a rest, or of the rounded-down share if none is left."""
    share = math.ceil(size / parts)
    if share * (parts - 1) >= size:
        share = size // parts
    return [share] * (parts - 1) + [size - share * (parts - 1)]


def admissible(shape: Shape) -> str | None:
    z = shape.size
    polar = shape.world_size // azimuth_size(shape)
    if z.C % 2 or z.nlon % 2 or z.nlat % 2:
        return f"C={z.C}, nlat={z.nlat} and nlon={z.nlon} must be even"
    if azimuth_size(shape) > z.C or z.nlat < 2 * max(polar, RADIUS):
        return f"C={z.C} or nlat={z.nlat} is too small for {azimuth_size(shape)} x {polar} ranks"
    return None


def cost(shape: Shape) -> Cost:
    """The cheaper of two ways to reduce, besides the exchange of longitudes for channels.

    Either the polar group reduce-scatters y and the azimuth row exchanges back, or channels are mixed first and the partial
    outputs are reduce-scattered over all ranks.

    At least what the filter's compact support leaves to exchange: the outermost RADIUS latitudes and longitudes of the own tile,
    to one polar neighbour (inner ranks have two) and to the neighbours on both sides along the longitudes.
    """
    z, w, a = shape.size, shape.world_size, azimuth_size(shape)
    q = w // a
    channels, points = z.C / a, z.nlat * z.nlon
    y = 4 * z.B * channels * z.K * points
    h_in, w_in = z.nlat / q, z.nlon / a
    there = 4 * z.B * channels * h_in * w_in * (a - 1)
    back = min(y * (q - 1) / q + y / q * (a - 1) / a, 4 * z.B * z.C * points * (w - 1) / w)
    polar = min(RADIUS, h_in) * w_in if q > 1 else 0
    azimuth = 2 * min(RADIUS, w_in / 2) * h_in if a > 1 else 0
    # a disc of RADIUS steps, of which a ring covers about its share; wider in longitude by 1/sin(latitude), on average pi/2
    nnz = z.K * z.nlat / q * max(1.0, 2 * math.pi * RADIUS**2 / z.K)
    tile = 4 * z.B * z.C * points / w
    return Cost(
        sent_bytes=there + back,
        least_sent_bytes=4 * z.B * z.C * (polar + azimuth),
        flops=2 * nnz * z.nlon * z.B * channels + 2 * z.B * z.C * z.C * z.K * points / w,
        memory_bytes=2 * tile + 12 * nnz,
        footprint_bytes=6 * tile + 60 * nnz + 3.5 * y,
    )


PROBLEM = Problem(
    title="Distributed discrete-continuous (DISCO) convolution on the sphere over a polar x azimuth process grid",
    category="geometric/spatial",
    source="torch-harmonics (distributed DISCO convolution)",
    sizes={
        "smoke": {"A": 2, "B": 2, "C": 4, "K": 3, "nlat": 16, "nlon": 32},
        "default": {"A": 2, "B": 32, "C": 8, "K": 3, "nlat": 128, "nlon": 256},
        "production": {"A": 2, "B": 1, "C": 640, "K": 7, "nlat": 360, "nlon": 720},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "filter, weight and bias are equal on all ranks that share them, so that the result is one global convolution; the "
        "original draws them per rank",
        "the filter has compact support on the sphere, rows widen towards the poles; the original's has four points per row",
        "uneven splits, down-sampling, channel groups, no bias and a purely polar layout occur",
    ),
    tags=("convolution", "sphere", "all-to-all"),
)
