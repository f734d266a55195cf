"""Every rank's shard rounded with its own scale, then joined in rank order."""

import torch

from tests.problems.statements.s052_fp8_reduce_scatter_grads import round_trip


def statement(ranks):
    rounded, histories = zip(*(round_trip(*inputs) for inputs in ranks), strict=True)
    return [(torch.cat(rounded), history) for history in histories]
