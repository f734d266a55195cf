"""The p-norm of all shards of all ranks as one vector."""

import torch


def statement(ranks):
    p = ranks[0][2]
    everything = torch.cat([g.double().flatten() for inputs in ranks for g in inputs[0] if g is not None])
    total = everything.abs().pow(p).sum().pow(1 / p).float()
    return [total for _ in ranks]
