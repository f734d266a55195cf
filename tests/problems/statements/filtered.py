"""The filter of problems 082 to 084, from its definition: whole rows, sorted downwards, in float64."""

import torch


def kept(x, top_k, top_p):
    """Mask of what sampling keeps of one row x: (V,)."""
    keep = torch.ones_like(x, dtype=torch.bool)
    if top_k is not None and 0 < top_k < len(x):
        keep = x >= x.sort(descending=True).values[top_k - 1]
    if top_p is not None and top_p < 1:
        probability = torch.where(keep, x, -torch.inf).softmax(0)
        larger = torch.tensor([probability[x > value].sum() for value in x])  # what comes before it, from the top
        keep = keep & (larger < top_p)
    return keep


def rows(ranks):
    """(logits (B*S, V) float64, targets (B*S,)) of the whole vocabulary."""
    logits = torch.cat([r[0] for r in ranks], dim=-1).double().flatten(0, 1)
    return logits, ranks[0][1].flatten()


def log_probs(ranks, top_k, top_p):
    """(B, S) log-probability of the targets among what is kept."""
    logits, target = rows(ranks)
    answer = [torch.where(kept(x, top_k, top_p), x, -torch.inf).log_softmax(0)[t] for x, t in zip(logits, target, strict=True)]
    return torch.stack(answer).view(ranks[0][1].shape)
