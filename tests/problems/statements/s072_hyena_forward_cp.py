"""The operator on the whole sequence, the convolution as a product with each channel's Toeplitz matrix."""

import torch


def join(parts, zigzag):
    if not zigzag:
        return torch.cat(parts, dim=-1)
    halves = [p.chunk(2, dim=-1) for p in parts]
    return torch.cat([a for a, _ in halves] + [b for _, b in reversed(halves)], dim=-1)


def statement(ranks):
    zigzag = ranks[0][8]
    x1, x2, v = (join([r[i].double() for r in ranks], zigzag) for i in range(3))
    _, _, _, h, bias, _, group_dim, _, _ = ranks[0]
    length = x1.shape[-1]
    z = x2 * v
    lag = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    usable = (lag >= 0) & (lag < h.shape[1])
    toeplitz = torch.where(usable, h.double()[:, lag.clamp(0, h.shape[1] - 1)], 0.0)
    conv = torch.einsum("dts,bds->bdt", toeplitz.repeat_interleave(group_dim, dim=0), z)
    out = (x1 * (conv + bias.double()[:, None] * z)).transpose(1, 2)
    world_size = len(ranks)
    if not zigzag:
        return list(out.chunk(world_size, dim=1))
    parts = out.chunk(2 * world_size, dim=1)
    return [torch.cat([parts[r], parts[2 * world_size - 1 - r]], dim=1) for r in range(world_size)]
