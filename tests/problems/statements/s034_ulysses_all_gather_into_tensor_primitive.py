"""The shards of the group, one below the other."""

import torch


def statement(ranks):
    everyone = range(len(ranks))
    return [torch.cat([ranks[q][0] for q in (group.ranks if group else everyone)]) for _, group in ranks]
