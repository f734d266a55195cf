"""Counts and mean probabilities expert by expert over the unpadded rows, then the mean of the ranks' losses."""

import torch


def rank_loss(gate_logits, num_experts, top_k, mask):
    layers = [gate_logits] if isinstance(gate_logits, torch.Tensor) else gate_logits
    rows = torch.cat([x if mask is None else x[mask.flatten().bool()] for x in layers]).double()
    probabilities = rows.exp() / rows.exp().sum(1, keepdim=True)
    border = rows.sort(dim=1, descending=True).values[:, top_k - 1 : top_k]
    shares = (rows >= border).double().mean(0)
    return num_experts * (shares @ probabilities.mean(0))


def statement(ranks):
    loss = sum(rank_loss(*inputs) for inputs in ranks) / len(ranks)
    return [loss.float() for _ in ranks]
