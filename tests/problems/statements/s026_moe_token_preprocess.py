"""The whole table of counts [source, expert], counted pair by pair from the indices of the ones."""

import torch


def statement(ranks):
    num_experts, W = ranks[0][1], len(ranks)
    table = torch.stack([torch.bincount(mask.nonzero()[:, 0], minlength=num_experts) for mask, *_ in ranks])
    traffic = table.view(W, W, -1).sum(2)  # [source, destination]
    outputs = []
    for r in range(W):
        own = table.view(W, W, -1)[:, r]
        outputs.append((traffic[r], traffic[:, r], own.float(), own.sum(0).float()))
    return outputs
