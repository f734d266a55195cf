"""Nearest E4M3 number from a table of all of them, ties to the even code."""

import torch

E4M3 = torch.tensor([m / 512 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:-1])


def nearest_code(magnitude):
    above = torch.searchsorted(E4M3, magnitude).clamp(max=len(E4M3) - 1)
    below = (above - 1).clamp(min=0)
    to_above, to_below = E4M3[above] - magnitude, magnitude - E4M3[below]
    even = torch.where(above % 2 == 0, above, below)
    return torch.where(to_above < to_below, above, torch.where(to_below < to_above, below, even))


def statement(ranks):
    x, block = torch.cat([inputs[0] for inputs in ranks]), ranks[0][1]
    blocks = x.view(x.shape[0], -1, block)
    scales = blocks.abs().max(dim=-1).values / 448
    quotient = blocks / scales.masked_fill(scales == 0, 1).unsqueeze(-1)
    codes = nearest_code(quotient.abs()).to(torch.uint8) | (torch.signbit(quotient).to(torch.uint8) << 7)
    codes = codes.view(x.shape).view(torch.float8_e4m3fn)
    return [(codes, scales) for _ in ranks]
