"""One process holds all blocks: H and P as one block-diagonal system."""

import torch


def statement(ranks):
    lam, nue = ranks[0][4:6]
    H = torch.cat([h for inputs in ranks for h in inputs[0]])
    W = torch.cat([w for inputs in ranks for w in inputs[2]])
    P = torch.block_diag(*(p for inputs in ranks for p in inputs[3]))
    lengths = [len(h) for inputs in ranks for h in inputs[0]]
    A = 1 / (lam * len(lengths) + H.T @ P @ H)
    K = P @ H
    all_weights = list((W + A * ranks[0][1] * K).split(lengths))
    outputs, done = [], 0
    for inputs in ranks:
        local = []
        for h, p in zip(inputs[0], inputs[3], strict=True):
            k = p @ h
            local.append((p - A * torch.outer(k[:, 0], k[:, 0])) / lam)
            done += 1
        next_lambda = torch.tensor(nue * lam + 1 - nue, dtype=W.dtype)
        outputs.append((all_weights, local, next_lambda))
    assert done == len(lengths)
    return outputs
