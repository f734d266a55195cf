"""Every camera looks at every Gaussian, in float64, one camera and one source rank at a time."""

import torch


def statement(ranks):
    num = [len(inputs[0]) for inputs in ranks]
    outputs = []
    for rank, own in enumerate(ranks):
        rows = []
        for source in ranks:
            for c, (view, K) in enumerate(zip(own[5], own[6], strict=True)):
                rows.append(seen(c, sum(num[:rank]), view.double(), K.double(), *source[:5], *own[7:12]))
        outputs.append(tuple(torch.cat(x) for x in zip(*rows, strict=True)))
    return outputs


def seen(camera, id_offset, view, K, means, quats, scales, opacities, colors, width, height, eps2d, near, far):
    """The eight outputs for one camera and the Gaussians of one rank."""
    dtype = means.dtype
    means, quats, scales = means.double(), quats.double(), scales.double()
    w, x, y, z = (quats / quats.norm(dim=1, keepdim=True)).T
    q = torch.stack([w, -z, y, z, w, -x, -y, x, w], dim=1).reshape(-1, 3, 3)  # w I + [v]x
    v = torch.stack([x, y, z], dim=1)
    rotation = q @ q + v[:, :, None] * v[:, None, :]  # (w I + [v]x)^2 + v v^T
    sigma = rotation @ torch.diag_embed(scales**2) @ rotation.mT

    p = means @ view[:3, :3].T + view[:3, 3]
    depth = p[:, 2:]
    uv = (p @ K.T)[:, :2] / depth
    focal, centre, extent = K.diagonal()[:2], K[:2, 2], torch.tensor([width, height], dtype=torch.float64)
    margin = 0.15 * extent / focal
    slope = torch.minimum(torch.maximum(p[:, :2] / depth, -centre / focal - margin), (extent - centre) / focal + margin)
    J = torch.cat([torch.diag_embed((focal / depth).expand(-1, 2)), (-focal * slope / depth)[:, :, None]], dim=2)
    T = J @ view[:3, :3]
    cov = T @ sigma @ T.mT + eps2d * torch.eye(2, dtype=torch.float64)
    radii = torch.ceil(3.33 * cov.diagonal(dim1=1, dim2=2).sqrt())
    inverse = torch.linalg.inv(cov)
    conic = torch.stack([inverse[:, 0, 0], (inverse[:, 0, 1] + inverse[:, 1, 0]) / 2, inverse[:, 1, 1]], dim=1)

    depth = depth[:, 0]
    visible = (depth > near) & (depth < far) & (uv + radii > 0).all(1) & (uv - radii < extent).all(1)
    ids = visible.nonzero()[:, 0]
    floats = (uv[ids], depth[ids], conic[ids], opacities[ids], colors[ids])
    return torch.full_like(ids, camera), ids + id_offset, radii[ids].int(), *(f.to(dtype) for f in floats)
