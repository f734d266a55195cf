"""Softmax attention over the whole sequence of each ring, in one piece."""

import torch


def statement(ranks):
    outputs = [None] * len(ranks)
    for members in rings([inputs[5] for inputs in ranks]):
        q, k, v = (torch.cat([ranks[r][i] for r in members], dim=1) for i in range(3))
        _, _, _, scale, causal, _ = ranks[members[0]]
        out = attention(q, k, v, scale, causal)
        for r, piece in zip(members, out.chunk(len(members), dim=1), strict=True):
            outputs[r] = piece
    return outputs


def rings(groups):
    """The distinct groups among those of all ranks; None is all ranks."""
    return sorted({tuple(range(len(groups))) if g is None else g.ranks for g in groups})


def attention(q, k, v, scale, causal):
    """(B, S, H, D) each; positions are those of the whole sequence."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * scale
    if causal:
        position = torch.arange(q.shape[1])
        scores = scores.where(position[:, None] >= position, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.double()).to(q.dtype)
