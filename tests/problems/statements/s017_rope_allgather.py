"""The rotation half by half on the whole sequence: the first loses x[i + e] sin[i], the second gains x[i] sin[i + e]."""

import torch


def statement(ranks):
    q, k, cos, sin = (torch.cat([inputs[i] for inputs in ranks], dim=1) for i in range(4))
    e = q.shape[-1] // 2

    def rotated(x):
        c, s = cos[:, :, None], sin[:, :, None]
        out = x * c
        out[..., :e] -= x[..., e:] * s[..., :e]
        out[..., e:] += x[..., :e] * s[..., e:]
        return out

    return [(rotated(q), rotated(k)) for _ in ranks]
