"""The convolution over the whole sphere with a dense filter, cut into tiles."""

import itertools

import torch


def statement(ranks):
    _, _, weight, groups, nlon_out, nlon_in, azimuth, _, bias = ranks[0]
    num_azimuth = len(azimuth.ranks)
    rows = [ranks[i : i + num_azimuth] for i in range(0, len(ranks), num_azimuth)]
    x = torch.cat([torch.cat([inputs[0] for inputs in row], dim=3) for row in rows], dim=2)
    psi = torch.cat([row[0][1].to_dense().unflatten(2, (-1, nlon_in)) for row in rows], dim=2)  # (K, T, h, w)

    shifted = (torch.arange(nlon_in)[:, None] + torch.arange(nlon_out) * (nlon_in // nlon_out)) % nlon_in
    y = torch.einsum("kthw,bchwl->bcktl", psi, x[..., shifted])
    out_channels, channels = weight.shape[0], x.shape[1]
    full = torch.zeros(out_channels, channels, weight.shape[2])  # block-diagonal over the channel groups
    for o in range(out_channels):
        g = o // (out_channels // groups)
        full[o, g * channels // groups : (g + 1) * channels // groups] = weight[o]
    output = torch.einsum("bcktl,ock->botl", y, full)
    if bias is not None:
        output = output + bias[:, None, None]
    tiles = []
    for band in cut(output, len(rows), 2):
        tiles += cut(band, num_azimuth, 3)
    return tiles


def cut(x, parts, dim):
    """Pieces of the rounded-up length, the last one shorter; of the rounded-down length if the last would be empty."""
    size = x.shape[dim]
    step = (size + parts - 1) // parts if (size + parts - 1) // parts * (parts - 1) < size else size // parts
    bounds = [i * step for i in range(parts)] + [size]
    return [x.narrow(dim, a, b - a) for a, b in itertools.pairwise(bounds)]
