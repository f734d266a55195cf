"""Every rank holds all the shards, stacked."""

import torch


def statement(ranks):
    stacked = torch.stack([tensor for (tensor,) in ranks])
    return [stacked for _ in ranks]
