"""torch's own cross-entropy of the whole logits, in float64."""

import torch


def statement(ranks):
    logits = torch.cat([r[0] for r in ranks], dim=-1).double()
    target = ranks[0][1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return [loss.view(target.shape) for _ in ranks]
