"""Autograd through the log-probability; where the target is filtered out only its normaliser counts."""

import torch

from tests.problems.statements.filtered import kept, rows


def statement(ranks):
    logits, target = rows(ranks)
    grad, top_k, top_p = ranks[0][2].double().flatten(), *ranks[0][4:6]
    keep = torch.stack([kept(x, top_k, top_p) for x in logits])
    logits.requires_grad_()
    normaliser = torch.where(keep, logits, -torch.inf).logsumexp(dim=1)
    chosen = logits.gather(1, target[:, None]).squeeze(1) * keep.gather(1, target[:, None]).squeeze(1)
    (grad * (chosen - normaliser)).sum().backward()
    whole = logits.grad.view(*ranks[0][1].shape, -1)
    return list(whole.chunk(len(ranks), dim=-1))
