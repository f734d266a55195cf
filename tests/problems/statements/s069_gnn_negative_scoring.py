"""One plus the number of negatives strictly above the positive, after rounding the sigmoid."""

import torch


def statement(ranks):
    positives = torch.cat([inputs[0] for inputs in ranks]).sigmoid()
    negatives = torch.cat([inputs[1] for inputs in ranks]).sigmoid()
    answer = 1 + (negatives > positives[:, None]).sum(dim=1)
    return [answer for _ in ranks]
