"""Rows of the whole table by indices stably sorted by owner."""

import torch


def statement(ranks):
    table = torch.cat([shard for _, shard in ranks])
    rows = ranks[0][1].shape[0]
    return [table[indices[torch.sort(indices // rows, stable=True).indices]] for indices, _ in ranks]
