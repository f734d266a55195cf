"""All pairs of all ranks in order, filtered by owner."""

import torch


def statement(ranks):
    ids = torch.cat([inputs[0] for inputs in ranks])
    rows = torch.cat([inputs[1] for inputs in ranks])
    return [(ids[ids % len(ranks) == r], rows[ids % len(ranks) == r]) for r in range(len(ranks))]
