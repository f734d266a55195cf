"""One step of the 2-layer MLP on one process: the gradient of the mean loss over all ranks' samples, and Adam."""

import torch


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def average_gradient(parameters, batches):
    """Flat gradient of the average, over ranks, of each rank's mean squared error."""
    w1, b1, w2, b2 = (p.detach().double().requires_grad_() for p in parameters)
    total = 0.0
    for x, y in batches:
        out = (x.double() @ w1.T + b1).clamp(min=0) @ w2.T + b2
        total = total + ((out - y.double()) ** 2).mean() / len(batches)
    total.backward()
    return flat([w1.grad, b1.grad, w2.grad, b2.grad])


def adam(p, m, v, g, lr, beta1, beta2, eps, step):
    """(p, m, v) after one step, from the formula of Kingma and Ba, in double precision."""
    m = beta1 * m.double() + (1 - beta1) * g
    v = beta2 * v.double() + (1 - beta2) * g**2
    return p.double() - lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)) ** 0.5 + eps), m, v


def split(vector, like):
    return [part.view(t.shape) for part, t in zip(vector.split([t.numel() for t in like]), like, strict=True)]


def sharded_adam_step(ranks):
    """Statement of ZeRO stages 1 and 2: full parameters from rank 0, moments in one slice per rank."""
    parameters = ranks[0][2:6]
    g = average_gradient(parameters, [inputs[:2] for inputs in ranks])
    m, v = (torch.cat([inputs[i] for inputs in ranks]) for i in (6, 7))
    p, m, v = adam(flat(parameters), m, v, g, *ranks[0][8:])
    world_size = len(ranks)
    return [
        (*split(p, parameters), m_own, v_own) for m_own, v_own in zip(m.chunk(world_size), v.chunk(world_size), strict=True)
    ]
