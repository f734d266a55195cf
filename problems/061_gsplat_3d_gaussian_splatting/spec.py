"""Problem 061: distributed Gaussian splatting, front end. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.draw import Draw
from pkb.problem import Context, Cost, Problem, Shape

VISIBLE = 0.25  # at least this part of all (camera, Gaussian) pairs is visible in a plain trial


def make_inputs(ctx: Context) -> tuple:
    """A ring of clusters, one per rank, and cameras inside it that look across: float32 whatever dtype is asked for.

    N differs by rank. Pairs of camera and Gaussian that rounding could decide either way are left out. wide: scales over a
    large range. ragged: other near and far planes. edge: the last rank has no Gaussians and the first rank's cameras look away.
    """
    z = ctx.size
    count = z.N + (z.N // 70) * ctx.rank
    near, far = 0.01, 1e10
    if ctx.variant == "ragged":
        count, near, far = count - 3, ctx.shared.real(0.5, 1.0), ctx.shared.real(3.0, 4.0)
    if ctx.variant == "edge":
        near, count = 0.2, 0 if ctx.rank == ctx.world_size - 1 else count
    eps2d = 0.3 if ctx.variant == "plain" else ctx.shared.real(0.1, 0.5)
    cameras = [draw_cameras(ctx, r) for r in range(ctx.world_size)]
    viewmats, Ks = (torch.cat(x) for x in zip(*cameras, strict=True))

    parts = [draw_gaussians(ctx, 0)]
    while sum(len(p[0]) for p in parts) < count:
        means, quats, scales = draw_gaussians(ctx, max(64, count))
        sure = decided(means, quats, scales, viewmats, Ks, z.width, z.height, eps2d, near, far)
        parts.append((means[sure], quats[sure], scales[sure]))
    means, quats, scales = (torch.cat(x)[:count] for x in zip(*parts, strict=True))
    opacities = ctx.own.uniform(0.1, 0.9, count, dtype=torch.float32)
    colors = ctx.own.uniform(0.0, 1.0, count, z.D, dtype=torch.float32)
    return means, quats, scales, opacities, colors, *cameras[ctx.rank], z.width, z.height, eps2d, near, far, "pinhole"


def draw_gaussians(ctx: Context, count: int) -> tuple:
    """(means, quats, scales) of ``count`` Gaussians in this rank's cluster of the ring."""
    own: Draw = ctx.own
    angle = 2 * math.pi * (ctx.rank / ctx.world_size + own.randn(count, dtype=torch.float32) * 0.4 / ctx.world_size)
    radius = own.uniform(1.5, 3.5, count, dtype=torch.float32)
    height = own.randn(count, scale=0.7, dtype=torch.float32)
    means = torch.stack([radius * torch.cos(angle), height, radius * torch.sin(angle)], dim=1)
    quats = own.randn(count, 4, dtype=torch.float32)
    low, high = (0.001, 0.3) if ctx.variant == "wide" else (0.02, 0.1)
    scales = torch.exp(own.uniform(math.log(low), math.log(high), count, 3, dtype=torch.float32))
    return means, quats, scales


def draw_cameras(ctx: Context, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """viewmats (C, 4, 4) and Ks (C, 3, 3) of ``rank``: inside the ring, looking across its centre."""
    z, draw = ctx.size, ctx.stream(f"cameras of rank {rank}")
    angle = draw.uniform(0.0, 2 * math.pi, z.C, dtype=torch.float32)
    radius = draw.uniform(0.8, 2.0, z.C, dtype=torch.float32)
    position = torch.stack([radius * torch.cos(angle), draw.randn(z.C, scale=0.2).float(), radius * torch.sin(angle)], dim=1)
    target = draw.randn(z.C, 3, scale=0.3, dtype=torch.float32)
    if ctx.variant == "edge" and rank == 0:
        target = position + torch.tensor([0.01, -1.0, 0.0], device=ctx.device)  # straight up, where nothing is
        position = position - torch.tensor([0.0, 50.0, 0.0], device=ctx.device)
        target = target - torch.tensor([0.0, 50.0, 0.0], device=ctx.device)
    forward = torch.nn.functional.normalize(target - position, dim=1)
    down = torch.tensor([[0.0, 1.0, 0.0]], device=ctx.device).expand_as(forward)
    right = torch.nn.functional.normalize(torch.linalg.cross(down, forward), dim=1)
    rotation = torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)
    viewmats = torch.eye(4, device=ctx.device).repeat(z.C, 1, 1)
    viewmats[:, :3, :3] = rotation
    viewmats[:, :3, 3] = -(rotation @ position.unsqueeze(-1)).squeeze(-1)
    Ks = torch.eye(3, device=ctx.device).repeat(z.C, 1, 1)
    focal = 0.8 * min(z.width, z.height)
    Ks[:, 0, 0] = focal * draw.uniform(0.9, 1.1, z.C, dtype=torch.float32)
    Ks[:, 1, 1] = focal * draw.uniform(0.9, 1.1, z.C, dtype=torch.float32)
    Ks[:, 0, 2] = z.width * draw.uniform(0.45, 0.55, z.C, dtype=torch.float32)
    Ks[:, 1, 2] = z.height * draw.uniform(0.45, 0.55, z.C, dtype=torch.float32)
    return viewmats, Ks


def decided(means, quats, scales, viewmats, Ks, width, height, eps2d, near, far) -> torch.Tensor:
    """Which Gaussians (N,) have, for every camera, radii and visibility that fp32 rounding cannot change.

    In float64: no ceiling, image border or depth plane is nearer than a margin a thousand times the fp32 error, and the 2-D
    covariance is not so thin that its inverse loses the fp32 digits.
    """
    means, quats, scales, viewmats, Ks = (x.double() for x in (means, quats, scales, viewmats, Ks))
    w, vector = (quats / quats.norm(dim=1, keepdim=True)).split([1, 3], dim=1)
    basis = torch.eye(3, dtype=torch.float64, device=means.device).expand(len(means), 3, 3)
    w, vector = w.unsqueeze(1), vector.unsqueeze(1).expand(-1, 3, -1)
    axes = basis + 2 * torch.linalg.cross(vector, torch.linalg.cross(vector, basis) + w * basis)  # rows: rotated axes
    axes = axes * scales.unsqueeze(-1)
    sure = torch.ones(len(means), dtype=torch.bool, device=means.device)
    for view, K in zip(viewmats, Ks, strict=True):
        p = means @ view[:3, :3].T + view[:3, 3]
        depth = p[:, 2]
        hidden = (depth < near - 1e-3) | (depth > far + 1e-3)
        plain = (depth > near + 1e-3) & (depth < far - 1e-3)
        focal, centre = torch.stack([K[0, 0], K[1, 1]]), K[:2, 2]
        extent = torch.tensor([width, height], dtype=torch.float64, device=means.device)
        margin = 0.3 * 0.5 * extent / focal
        slope = torch.clamp(p[:, :2] / depth[:, None], -(centre / focal + margin), (extent - centre) / focal + margin)
        # rows of the Jacobian: focal/depth * (e_i - slope_i e_z)
        a = axes @ view[:3, :3].T
        spread = (focal / depth[:, None])[:, None, :] * (a[..., :2] - slope[:, None, :] * a[..., 2:])
        radius = 3.33 * torch.sqrt(spread.square().sum(1) + eps2d)
        at = p[:, :2] * focal / depth[:, None] + centre
        c00, c11 = (spread.square().sum(1) + eps2d).unbind(1)
        c01 = spread.prod(dim=2).sum(1)
        slack = 1e-3 + 2e-4 * radius
        clear = ((radius - radius.round()).abs() > slack) & (c01**2 < 0.99 * c00 * c11)[:, None]
        for edge in (at + radius.ceil(), at - radius.ceil() - extent):
            clear &= edge.abs() > 1e-2 + 2e-4 * at.abs()
        sure &= hidden | (plain & clear.all(dim=1))
    return sure


def cost(shape: Shape) -> Cost:
    """Rows of 7 + D floats, two radii and two ids (8 bytes suffice) for the visible pairs of foreign cameras."""
    z, w = shape.size, shape.world_size
    pairs = z.N * w * z.C
    visible = VISIBLE * pairs
    row = 4 * (7 + z.D) + 8 + 16
    return Cost(
        sent_bytes=(w - 1) * z.C * 25 * 4 + visible * (w - 1) / w * (4 * (7 + z.D) + 16),
        flops=300 * pairs,
        memory_bytes=4 * z.N * (11 + z.D) + 2 * visible * row,
        footprint_bytes=4 * z.N * (11 + z.D) + pairs * (4 * 80 + 3 * row),  # per pair: three 3x3, two 2x3, 2x2 and vectors
    )


PROBLEM = Problem(
    title="Distributed 3D Gaussian splatting front end: gather cameras, project, cull, send visible Gaussians to camera owners",
    category="geometric/spatial",
    source="gsplat (distributed rasterisation, packed mode)",
    sizes={
        "smoke": {"N": 500, "C": 2, "D": 3, "width": 96, "height": 64},
        "default": {"N": 1024, "C": 1, "D": 3, "width": 512, "height": 512},
        "production": {"N": 1_000_000, "C": 1, "D": 3, "width": 1920, "height": 1080},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "inputs are always float32, as in production; the original's are bf16, whose rounding decides radii and visibility",
        "cameras differ and look across a ring of clusters, about half the pairs are visible, near and far planes cut; in the "
        "original all cameras are equal and see everything",
        "Gaussians whose radius or visibility fp32 rounding could change are left out, so that integers compare exactly",
        "the number of Gaussians differs by rank; one rank has none and some cameras see nothing in one trial",
    ),
    tags=("gaussian splatting", "all-to-all"),
)
