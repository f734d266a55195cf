"""Autograd through attention over the whole sequence of each replica, averaged over replicas."""

import torch

from tests.problems.statements.s054_ring_attention import attention, rings


def statement(ranks):
    gradients = {}
    for ring in rings([inputs[8] for inputs in ranks]):
        dout, q, k, v = (torch.cat([ranks[r][i] for r in ring], dim=1).double() for i in range(4))
        for x in (q, k, v):
            x.requires_grad_(True)
        attention(q, k, v, *ranks[ring[0]][6:8]).backward(dout)
        shards = zip(*(x.grad.chunk(len(ring), dim=1) for x in (q, k, v)), strict=True)
        gradients |= dict(zip(ring, shards, strict=True))
    outputs = []
    for r, inputs in enumerate(ranks):
        peers = [r] if inputs[9] is None else inputs[9].ranks
        means = (sum(gradients[p][i] for p in peers) / len(peers) for i in range(3))
        outputs.append(tuple(x.to(inputs[1].dtype) for x in means))
    return outputs
