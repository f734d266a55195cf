"""The grid of slices by (source, destination), transposed."""

import torch


def statement(ranks):
    grid = torch.stack([tensor for (tensor,) in ranks])
    return list(grid.transpose(0, 1))
