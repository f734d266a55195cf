"""E4M3 rounding written out (three mantissa bits, exponents from -6), then the mean over ranks of each chunk."""

import torch


def statement(ranks):
    rounded, histories = zip(*(round_trip(*inputs) for inputs in ranks), strict=True)
    chunks = (sum(rounded) / len(ranks)).chunk(len(ranks))
    return list(zip(chunks, histories, strict=True))


def round_trip(x, history):
    history = torch.cat([history[1:], x.abs().max().reshape(1).to(history.dtype)])
    scale = torch.clamp(history.max(), min=1e-12).float() / 448
    q = x / scale
    exponent = torch.frexp(q.abs()).exponent - 1
    step = torch.exp2((exponent.clamp(min=-6) - 3).float())
    return (torch.round(q / step) * step).clamp(-448, 448) * scale, history
