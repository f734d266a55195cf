"""The MLP on all rows at once, cut into row blocks."""

import torch


def statement(ranks):
    x = torch.cat([x_local for x_local, _, _ in ranks], dim=1)
    _, W1, W2 = ranks[0]
    h = x @ W1
    y = (h / (1 + torch.exp(-h))) @ W2
    return list(y.chunk(len(ranks)))
