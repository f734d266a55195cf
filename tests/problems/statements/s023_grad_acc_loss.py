"""The weighted mean of all ranks' losses, and autograd through it."""

import torch


def statement(ranks):
    weighted = [(loss * n).item() if n > 0 else 0.0 for loss, n, *_ in ranks]
    outputs = []
    for loss, n, n_global, g1, g2 in ranks:
        leaf = torch.zeros_like(loss).requires_grad_()
        product = leaf * n
        objective = g1 * product / n_global + (0 if g2 is None else g2 * product)
        (gradient,) = torch.autograd.grad(objective, leaf)
        total = torch.tensor(sum(weighted))
        outputs.append((total / n_global, total, gradient))
    return outputs
