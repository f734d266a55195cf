"""Rows of the whole table, projected."""

import torch


def statement(ranks):
    table = torch.cat([inputs[0] for inputs in ranks])
    return [table[ids] @ proj for _, ids, proj, _ in ranks]
