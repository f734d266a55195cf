"""Real part of the complex inverse FFT of the half spectrum with its inner columns doubled, cut into column blocks."""

import torch


def statement(ranks):
    _, (n0, n1), dim, norm, _ = ranks[0]
    half = torch.cat([inputs[0] for inputs in ranks], dim=dim[0])
    full = torch.zeros(*half.shape[:-1], n1, dtype=half.dtype)
    full[..., : half.shape[-1]] = half
    inner = torch.arange(1, half.shape[-1])
    full[..., inner[2 * inner != n1]] *= 2
    return torch.fft.ifft2(full, s=(n0, n1), dim=dim, norm=norm).real.chunk(len(ranks), dim=dim[1])
