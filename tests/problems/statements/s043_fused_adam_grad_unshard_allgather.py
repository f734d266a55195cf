"""Adam on the concatenated shards."""

import torch

from tests.problems.statements.mlp_step import adam


def statement(ranks):
    g, w, m, v = (torch.cat([inputs[i] for inputs in ranks]) for i in range(4))
    updated, _, _ = adam(w, m, v, g.double(), *ranks[0][4:])
    return [updated for _ in ranks]
