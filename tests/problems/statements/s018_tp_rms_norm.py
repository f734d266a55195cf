"""RMSNorm of the whole hidden dimension, cut into slices."""

import torch


def statement(ranks):
    x = torch.cat([inputs[0] for inputs in ranks], dim=-1)
    weight = torch.cat([inputs[1] for inputs in ranks])
    y = torch.nn.functional.rms_norm(x, weight.shape, weight, eps=ranks[0][2])
    return list(y.chunk(len(ranks), dim=-1))
