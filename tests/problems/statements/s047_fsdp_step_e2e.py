"""AdamW on the whole flat vector, cut into slices."""

import torch

from tests.problems.statements.mlp_step import adam, average_gradient


def statement(ranks):
    flat, m, v = (torch.cat([inputs[i] for inputs in ranks]) for i in (2, 4, 5))
    shapes = ranks[0][3]
    parts = flat.split([torch.Size(shape).numel() for shape in shapes])
    g = average_gradient([p.view(shape) for p, shape in zip(parts, shapes, strict=True)], [inputs[:2] for inputs in ranks])
    lr, beta1, beta2, eps, decay, step = ranks[0][6:]
    p, m, v = adam(flat, m, v, g, lr, beta1, beta2, eps, step)
    p = p - lr * decay * flat.double()
    return list(zip(*(t.chunk(len(ranks)) for t in (p, m, v)), strict=True))
