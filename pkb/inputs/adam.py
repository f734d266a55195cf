"""Hyperparameters of Adam."""

from __future__ import annotations

from pkb.draw import Draw


def betas(draw: Draw) -> tuple[float, float]:
    """(beta1, beta2): beta1 from 0.8 to 0.95, beta2 near 0.95, 0.99 or 0.999.

    Both, and what is missing to 1, are exact in float32: kernels take the betas as floats and subtract them from 1 there (as
    Apex's and DeepSpeed's do), and for 0.999 that alone would be off by 1e-5, far more than fp32 arithmetic errs.
    """
    return draw.integer(205, 244) / 256, 1 - 2.0 ** -draw.choice([4, 7, 10])
