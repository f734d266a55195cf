"""Alternating scaling of the whole score matrix in float64, in log space."""

import torch


def statement(ranks):
    _, temperature, _, iterations = ranks[0]
    sizes = [r[0].shape[0] for r in ranks]
    log_q = torch.cat([r[0] for r in ranks]).double() / temperature
    if iterations == 0:
        counted = sum(int(r[2]) for r in ranks)
        log_q = log_q - log_q.flatten().logsumexp(0) + torch.tensor(float(counted)).double().log()
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True)
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)
    return list(log_q.exp().split(sizes))
