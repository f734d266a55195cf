"""Uneven row exchanges of cooperative graph mini-batches: who sends how many rows to whom, and which."""

from __future__ import annotations

from typing import Any

from pkb.problem import Context


def count_matrix(ctx: Context, mean: int) -> list[list[int]]:
    """rows[r][q] that rank r sends to rank q, equal on all ranks.

    Between different ranks the counts of one rank are spread over 0 .. 2 * mean, in random order, and add up to about
    (W - 1) * mean; on two ranks they are the mean, more one way than the other. Partitions are local: a rank keeps between mean
    and 2 * mean of its own rows. Ragged trial: any counts. Edge trial: most pairs exchange nothing, one rank sends nothing at all.
    """
    world, draw = ctx.world_size, ctx.stream("row counts")
    tilt = draw.real(-0.5, 0.5)
    matrix = []
    for r in range(world):
        others = [2 * mean * i // max(1, world - 2) for i in range(world - 1)]
        if world == 2:
            others = [round(mean * (1 + (tilt if r == 0 else -tilt)))]
        if ctx.variant == "ragged":
            others = [draw.integer(0, 2 * mean) | 1 for _ in others]
        if ctx.variant == "edge":
            others = [n if draw.integer(0, 3) == 0 else 0 for n in others]
        order = draw.permutation(world - 1).tolist()
        row = [others[i] for i in order]
        row.insert(r, draw.integer(mean, 2 * mean + 1))
        matrix.append(row)
    if ctx.variant == "edge":
        silent = draw.integer(0, world)
        matrix[silent] = [0] * world
        talker = (silent + 1) % world
        matrix[talker][silent] = max(matrix[talker][silent], mean)  # something must cross
    return matrix


def relative(counts: list[int], rank: int) -> list[int]:
    """Counts by absolute peer, re-ordered so that entry i belongs to rank (rank + i) % W."""
    return counts[rank:] + counts[:rank]


def seed_ids(ctx: Context, rows: int, seeds: int, untouched: int = 0) -> Any:
    """int64 (rows,): which of ``seeds`` each row wants, popular ones many times (cube of a uniform number).

    Every seed but the last ``untouched`` occurs at least once, if there are rows enough.
    """
    import torch

    live = max(1, seeds - untouched)
    popular = (ctx.own.uniform(0.0, 1.0, rows, dtype=torch.float64) ** 3 * live).long().clamp(max=live - 1)
    covered = min(rows, live)
    popular[:covered] = torch.arange(covered, device=ctx.device)
    return popular[ctx.own.permutation(rows)]
