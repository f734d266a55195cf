"""Logits of the whole vocabulary on one process."""

import torch


def statement(ranks):
    weight = torch.cat([inputs[1] for inputs in ranks])
    bias = torch.cat([inputs[2] for inputs in ranks])
    return [torch.nn.functional.linear(inputs[0], weight, bias) for inputs in ranks]
