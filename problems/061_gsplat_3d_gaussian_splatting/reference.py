"""Distributed 3D Gaussian splatting, front end: project local Gaussians to all cameras and send the visible ones away.

Each rank holds a part of the scene's Gaussians and C cameras. The ranks gather all cameras; each projects its Gaussians to
every camera, drops those that fall outside of the depth range or the image, and sends what is left to the rank that owns the
camera, which will rasterise it. This is the exchange of multi-GPU Gaussian splatting (gsplat, distributed and packed mode).
All arithmetic is in the dtype of the inputs.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    image_width: int,
    image_height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    camera_model: str = "pinhole",
) -> tuple[torch.Tensor, ...]:
    """Return what this rank's cameras see, over the Gaussians of all ranks, ordered by (source rank, camera, Gaussian).

    means: (N, 3) centres in the world frame; N may differ by rank. quats: (N, 4) rotations (w, x, y, z), of any length.
    scales: (N, 3) along the axes. opacities: (N,). colors: (N, D). viewmats: (C, 4, 4) world to camera, the same C on all
    ranks. Ks: (C, 3, 3) intrinsics. image_width, image_height: pixels. eps2d: added to the diagonal of the 2-D covariance.
    near_plane, far_plane: depth range. camera_model: only "pinhole" is known.
    Returns (camera_ids (n,) int64, gaussian_ids (n,) int64, radii (n, 2) int32, means2d (n, 2), depths (n,), conics (n, 3),
    opacities (n,), colors (n, D)); n depends on the data. Camera ids count from 0 on each rank.
    """
    assert camera_model == "pinhole", f"unknown camera model {camera_model}"
    world = dist.get_world_size()
    device = means.device
    num_gaussians, num_cameras = means.shape[0], viewmats.shape[0]

    # Every rank learns how many Gaussians each rank has, and all cameras: camera g belongs to rank g // C.
    counts = torch.empty(world, dtype=torch.int32, device=device)
    dist.all_gather_into_tensor(counts, torch.tensor([num_gaussians], dtype=torch.int32, device=device))
    cameras = torch.cat([viewmats.flatten(1), Ks.flatten(1)], dim=1)  # (C, 16 + 9)
    all_cameras = cameras.new_empty(world * num_cameras, 25)
    dist.all_gather_into_tensor(all_cameras, cameras)
    all_viewmats, all_Ks = all_cameras[:, :16].reshape(-1, 4, 4), all_cameras[:, 16:].reshape(-1, 3, 3)

    # Project every local Gaussian to every camera: (G, N, ...), G = world * C.
    means_c, covariances_c = to_camera_frame(means, covariance(quats, scales), all_viewmats)
    means2d, covariances2d = project(means_c, covariances_c, all_Ks, image_width, image_height)
    depths = means_c[..., 2]
    covariances2d = covariances2d + eps2d * torch.eye(2, dtype=means.dtype, device=device)
    c00, c01, c10, c11 = covariances2d.flatten(-2).unbind(-1)
    det = (c00 * c11 - c01 * c10).clamp(min=1e-10)
    conics = torch.stack([c11 / det, -(c01 + c10) / 2 / det, c00 / det], dim=-1)

    # Cull: three standard deviations around the centre must touch the image, the depth must be in range.
    radii = torch.ceil(3.33 * torch.sqrt(torch.stack([c00, c11], dim=-1)))
    in_range = (depths > near_plane) & (depths < far_plane)
    radii = radii.masked_fill(~in_range.unsqueeze(-1), 0.0)
    extent = torch.tensor([image_width, image_height], dtype=means.dtype, device=device)
    inside = ((means2d + radii > 0) & (means2d - radii < extent)).all(dim=-1)
    radii = radii.masked_fill(~inside.unsqueeze(-1), 0.0).int()

    # Pack the visible pairs, ordered by camera, then by Gaussian.
    camera, gaussian = (radii > 0).all(dim=-1).nonzero(as_tuple=True)
    radii = radii[camera, gaussian]
    floats = torch.cat(
        [
            means2d[camera, gaussian],
            depths[camera, gaussian].unsqueeze(-1),
            conics[camera, gaussian],
            opacities[gaussian].unsqueeze(-1),
            colors[gaussian],
        ],
        dim=-1,
    )  # (rows, 7 + D)

    # Rank j gets the rows of its cameras. Camera ids become local to rank j; Gaussian ids are shifted by the number of
    # Gaussians on the ranks before the destination.
    owner = camera // num_cameras
    send = torch.bincount(owner, minlength=world)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    send_rows, receive_rows = send.tolist(), receive.tolist()
    offsets = counts.cumsum(0) - counts
    ids = torch.stack([camera - owner * num_cameras, gaussian + offsets[owner]], dim=-1)

    radii = exchange_rows(radii, send_rows, receive_rows)
    floats = exchange_rows(floats, send_rows, receive_rows)
    ids = exchange_rows(ids, send_rows, receive_rows)
    means2d, depths, conics, opacities, colors = floats.split([2, 1, 3, 1, colors.shape[-1]], dim=-1)
    return ids[:, 0], ids[:, 1], radii, means2d, depths.squeeze(-1), conics, opacities.squeeze(-1), colors


def covariance(quats: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Covariances (N, 3, 3) of Gaussians with axes rotated by quats (N, 4) and scaled by scales (N, 3)."""
    w, x, y, z = F.normalize(quats, p=2, dim=-1, eps=1e-12).unbind(-1)
    rotation = torch.stack(
        [
            1 - 2 * (y**2 + z**2),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x**2 + z**2),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x**2 + y**2),
        ],
        dim=-1,
    ).reshape(-1, 3, 3)
    axes = rotation * scales.unsqueeze(-2)
    return axes @ axes.transpose(-2, -1)


def to_camera_frame(
    means: torch.Tensor, covariances: torch.Tensor, viewmats: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres (G, N, 3) and covariances (G, N, 3, 3) of all Gaussians in the frames of all G cameras."""
    rotation, translation = viewmats[:, :3, :3], viewmats[:, :3, 3]
    means_c = means @ rotation.transpose(-2, -1) + translation.unsqueeze(1)
    rotation = rotation.unsqueeze(1)
    return means_c, (rotation @ covariances) @ rotation.transpose(-2, -1)


def project(
    means_c: torch.Tensor, covariances_c: torch.Tensor, Ks: torch.Tensor, width: int, height: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixel positions (G, N, 2) and 2-D covariances (G, N, 2, 2) by perspective projection, linearised at the centre."""
    tx, ty, tz = means_c.unbind(-1)
    fx, fy = Ks[:, 0, 0].unsqueeze(-1), Ks[:, 1, 1].unsqueeze(-1)
    cx, cy = Ks[:, 0, 2].unsqueeze(-1), Ks[:, 1, 2].unsqueeze(-1)

    # The linearisation is bad far outside the image: clamp the viewing direction to a margin around it.
    tan_x, tan_y = 0.5 * width / fx, 0.5 * height / fy
    x = tz * torch.clamp(tx / tz, min=-(cx / fx + 0.3 * tan_x), max=(width - cx) / fx + 0.3 * tan_x)
    y = tz * torch.clamp(ty / tz, min=-(cy / fy + 0.3 * tan_y), max=(height - cy) / fy + 0.3 * tan_y)
    zero = torch.zeros_like(tz)
    jacobian = torch.stack([fx / tz, zero, -fx * x / tz**2, zero, fy / tz, -fy * y / tz**2], dim=-1)
    jacobian = jacobian.reshape(*tz.shape, 2, 3)
    covariances2d = (jacobian @ covariances_c) @ jacobian.transpose(-2, -1)
    means2d = means_c @ Ks[:, :2].transpose(-2, -1) / tz.unsqueeze(-1)
    return means2d, covariances2d


def exchange_rows(rows: torch.Tensor, send_rows: list[int], receive_rows: list[int]) -> torch.Tensor:
    """All-to-all of rows: the first send_rows[0] go to rank 0, the next send_rows[1] to rank 1, and so on."""
    received = rows.new_empty(sum(receive_rows), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receive_rows, send_rows)
    return received
