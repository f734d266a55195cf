"""Causal convolution of the whole sequence as a sum over taps."""

import torch


def statement(ranks):
    world_size = len(ranks)
    weight = ranks[0][1].double()
    chunks = {}
    for rank, (x, _) in enumerate(ranks):
        chunks[rank], chunks[2 * world_size - 1 - rank] = x.double().chunk(2, dim=2)
    full = torch.cat([chunks[i] for i in range(2 * world_size)], dim=2)
    taps = weight.shape[2]
    y = torch.zeros_like(full)
    for lag in range(taps):
        shifted = torch.nn.functional.pad(full, (lag, 0))[:, :, : full.shape[2]]
        y += weight[None, :, 0, taps - 1 - lag, None] * shifted
    parts = y.chunk(2 * world_size, dim=2)
    return [torch.cat([parts[r], parts[2 * world_size - 1 - r]], dim=2) for r in range(world_size)]
