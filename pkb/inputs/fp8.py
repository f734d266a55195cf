"""Values and amax histories for rounding to FP8 with delayed scaling."""

from __future__ import annotations

from typing import Any

from pkb.problem import Context


def delayed_scaling(ctx: Context, count: int, entries: int) -> tuple[Any, Any]:
    """(values (count,), amax history (entries,) bfloat16, newest last) for rounding to FP8 E4M3 with delayed scaling.

    Heavy-tailed values, scaled differently on each rank. The history is of one of three kinds, by rank and trial: a spike that
    stays, so high that the values fall among the FP8 subnormals and rounding changes them by several per cent (at least one
    rank, and those ranks have the largest values); a spike in the oldest slot, which rolls out; all below the current maximum.
    Integers trial: scales are powers of two, so that nothing is rounded. Edge trial: one rank has only zeros, history too.
    """
    import torch

    spiked = ctx.shared.integer(0, min(3, ctx.world_size))
    stays, rolls_out = (ctx.rank - spiked) % 3 == 0, (ctx.rank + ctx.trial) % 2 == 0
    values = ctx.own.values(count, dtype=torch.float32)
    slot = ctx.own.integer(1, entries)
    history = ctx.own.uniform(0.05, 0.9, entries, dtype=torch.float32)
    if ctx.variant == "integers":
        history[slot] = 448.0 * 2.0 ** (ctx.rank % 3 - 1)
        history[0] = 9999.0 if rolls_out else history[0]
    elif ctx.variant == "edge" and ctx.rank == (spiked + 1) % ctx.world_size:
        values, history = torch.zeros_like(values), torch.zeros_like(history)
    else:
        values *= torch.exp(ctx.own.randn(count).float()) * (ctx.own.real(2.0, 4.0) if stays else ctx.own.real(0.3, 2.0))
        history *= values.abs().max()
        if stays:
            subnormal_steps = ctx.own.real(1.5, 4.0)  # what the values' RMS is to be, in steps of 2**-9 after scaling
            history[slot] = values.square().mean().sqrt() * 448.0 * 512.0 / subnormal_steps
        elif rolls_out:
            history[0] = 50.0 * values.abs().max()
    values, history = values.to(ctx.dtype), history.to(torch.bfloat16)
    return without_ties(values, history), history


def without_ties(values: Any, history: Any) -> Any:
    """The values with zero in place of those so near the middle of two FP8 numbers that a few ulp of the scale decide.

    A kernel that multiplies by the reciprocal of the scale, or divides approximately, then rounds as the reference does.
    """
    import torch

    amax = values.abs().max().to(history.dtype)
    scale = torch.maximum(history[1:].max(), amax).clamp(min=1e-12).float() / 448.0
    down, up = (((values.float() / scale) * (1 + d)).to(torch.float8_e4m3fn).float() for d in (-(2.0**-20), 2.0**-20))
    return torch.where(down == up, values, torch.zeros_like(values))
