"""The shards of the group, joined."""

import torch


def statement(ranks):
    everyone = range(len(ranks))
    return [torch.cat([ranks[q][0] for q in (group.ranks if group else everyone)], dim) for _, dim, group in ranks]
