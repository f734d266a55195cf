"""Every element times the scale of its block, then the slices sorted by destination."""

import torch


def statement(ranks):
    decoded = []
    for y, s, block in ranks:
        scale = s.float().flatten().repeat_interleave(block).view(y.shape)
        decoded.append(y.float() * scale)
    return [torch.stack([x[d] for x in decoded]) for d in range(len(ranks))]
