"""The destination holds all tensors, stacked; the others their own."""

import torch


def statement(ranks):
    dst = ranks[0][1]
    stacked = torch.stack([tensor for tensor, _ in ranks])
    return [stacked if rank == dst else tensor for rank, (tensor, _) in enumerate(ranks)]
