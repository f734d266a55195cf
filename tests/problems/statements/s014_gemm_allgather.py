"""The replicated A times all columns of the weight at once."""

import torch


def statement(ranks):
    C = ranks[0][0] @ torch.cat([B for _, B in ranks], dim=1)
    return [C for _ in ranks]
