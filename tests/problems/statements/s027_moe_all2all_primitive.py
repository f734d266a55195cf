"""Cut every rank's rows by its own input splits and join what is addressed to each rank."""

import torch


def statement(ranks):
    W = len(ranks)
    blocks = [x.split(splits or [len(x) // W] * W) for x, splits, *_ in ranks]
    return [torch.cat([blocks[q][r] for q in range(W)]) for r in range(W)]
