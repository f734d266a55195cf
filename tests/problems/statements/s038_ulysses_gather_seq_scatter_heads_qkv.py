"""Queries, keys and values apart: the whole sequence on one process, and each rank's slice of each of the three."""

import torch


def statement(ranks):
    world_size = len(ranks)
    _, seq, _, length, restore = ranks[0]
    full = torch.cat([inputs[0] for inputs in ranks], seq)
    if length and length % world_size:
        full = full.index_select(seq, torch.arange(length))
    thirds = [t.tensor_split(world_size, -1) for t in full.tensor_split(3, -1)]
    join = torch.cat if restore else torch.stack
    return [join([t[r] for t in thirds], dim=-1 if restore else -2) for r in range(world_size)]
