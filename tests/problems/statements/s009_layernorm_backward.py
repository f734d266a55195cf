"""Autograd of y = x_hat * gamma + beta over all rows at once."""

import torch


def statement(ranks):
    x_hat = torch.cat([inputs[0] for inputs in ranks])
    dY = torch.cat([inputs[1] for inputs in ranks])
    gamma = torch.ones(x_hat.shape[1], requires_grad=True)
    beta = torch.zeros(x_hat.shape[1], requires_grad=True)
    (x_hat * gamma + beta).backward(dY)
    return [(gamma.grad, beta.grad) for _ in ranks]
