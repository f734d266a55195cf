"""The mean over ranks of all rows, normalised, and each rank's share of the rows."""

import torch


def statement(ranks):
    _, gamma, eps = ranks[0]
    rows = torch.stack([inputs[0] for inputs in ranks]).double().mean(0).view(-1, gamma.numel())
    normed = torch.nn.functional.rms_norm(rows, (gamma.numel(),), gamma.double(), eps)
    return list(normed.chunk(len(ranks)))
