"""Join all tensors along the gathered dimension, keep one part of the scattered one."""

import torch


def statement(ranks):
    outputs = []
    for rank, (_, scatter, gather, group) in enumerate(ranks):
        members = list(group.ranks) if group else list(range(len(ranks)))
        index, size = members.index(rank), ranks[rank][0].shape[scatter] // len(members)
        parts = [ranks[q][0].narrow(scatter, index * size, size) for q in members]
        outputs.append(torch.cat(parts, gather))
    return outputs
