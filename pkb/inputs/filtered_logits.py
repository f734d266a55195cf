"""Logits whose top-k and top-p cuts are clear, for the problems that filter vocabulary-sharded logits.

Rounding decides who survives a cut that falls between nearly equal candidates, and a different survivor changes an answer
entirely. Here every token has two to four dominant classes whose share leaves the filters' cuts in a wide gap: the running
sum of probabilities has no value within 0.01 of 1 - top_p, in any order of summation and in bfloat16. Ties at the top-k
threshold do occur; all of them stay.
"""

from __future__ import annotations

import math
from typing import Any

from pkb.problem import Context

HEADS = 4  # dominant classes of a token, at most
TYPICAL_TOP_P = 0.9  # shapes the dominant share when no top-p filter is active
TAIL_SPREAD = {"wide": 4.0}


def draw(
    ctx: Context, batch: int, length: int, columns: int, top_k: int | None, top_p: float | None, kept_only: bool
) -> tuple[Any, Any]:
    """(logits, target): this rank's (batch, length, columns) in the requested dtype, and (batch, length) int64 for all ranks.

    Three fifths of the targets are dominant classes, a fifth lies at the edge of the top-k, a fifth anywhere (all of them
    are dominant with ``kept_only``). Dominant classes lie anywhere in the vocabulary of world size times columns.
    top_p must lie in [0.88, 0.96] where it is active.
    """
    import torch

    tokens, vocabulary = batch * length, columns * ctx.world_size
    shared = ctx.stream("dominant classes")
    slots = torch.arange(HEADS, device=ctx.device)
    stratum = vocabulary // HEADS
    start = shared.integers(0, vocabulary, tokens, 1)
    heads = (start + slots * stratum + shared.integers(0, stratum, tokens, HEADS)) % vocabulary  # distinct
    count = shared.integers(2, HEADS + 1, tokens, 1)
    active = slots < count

    def place(matrix: Any, rank: int, values: Any) -> None:
        """Write the dominant classes that ``rank`` owns into its columns."""
        row, slot = (active & (heads // columns == rank)).nonzero(as_tuple=True)
        matrix[row, heads[row, slot] % columns] = values[row, slot]

    def tail(rank: int) -> Any:
        """(tokens, columns) float32: what ``rank`` holds apart from the dominant classes, as its dtype rounds it."""
        own = ctx.of(rank)
        if ctx.variant == "integers":
            x = own.integers(-8, 5, tokens, columns, dtype=torch.float32)
        else:
            x = own.randn(tokens, columns, scale=TAIL_SPREAD.get(ctx.variant, 2.5), dtype=torch.float32)
        x = (x - round(math.log(vocabulary))).to(ctx.dtype).float()
        place(x, rank, torch.full_like(heads, -math.inf, dtype=torch.float32))
        return x

    # The largest tail values with their ids: the top-k filter keeps those that the dominant classes leave room for.
    filtering = top_k is not None and 0 < top_k < vocabulary
    wanted = (top_k if filtering and top_k is not None else 0) + 2
    best = torch.full((tokens, 1), -math.inf, device=ctx.device)
    best_id = torch.zeros(tokens, 1, dtype=torch.int64, device=ctx.device)
    for rank in range(ctx.world_size):
        values, ids = tail(rank).topk(min(wanted, columns), dim=1)
        best, ids_of_best = torch.cat([best, values], 1).topk(min(wanted, best.shape[1] + values.shape[1]), dim=1)
        best_id = torch.cat([best_id, ids + rank * columns], 1).gather(1, ids_of_best)
    room = (top_k - count).clamp(min=0) if filtering and top_k is not None else torch.zeros_like(count)
    threshold = best.gather(1, (room - 1).clamp(min=0)) if filtering else torch.full_like(best[:, :1], -math.inf)

    # Dominant classes share all but a part of what the top-p filter drops.
    mass = torch.full((tokens, 1), -math.inf, dtype=torch.float64, device=ctx.device)
    for rank in range(ctx.world_size):
        x = tail(rank)
        mass = torch.logaddexp(mass, x.masked_fill(x < threshold, -math.inf).double().logsumexp(1, keepdim=True))
    dropped = 1 - (top_p if top_p is not None and top_p < 1 else TYPICAL_TOP_P)
    share = shared.uniform(0.2, 0.65, tokens, 1, dtype=torch.float64) * dropped
    weight = shared.uniform(1.0, 2.0, tokens, HEADS, dtype=torch.float64) * active
    values = (mass + torch.log((1 - share) / share) + torch.log(weight / weight.sum(1, keepdim=True))).float()

    logits = tail(ctx.rank)
    place(logits, ctx.rank, values)

    dominant = heads.gather(1, shared.integers(0, 12, tokens, 1) % count)
    beyond = (room + shared.integers(-1, 1, tokens, 1)).clamp(0, best_id.shape[1] - 1)  # last that stays, or first that goes
    edge = best_id.gather(1, beyond)
    anywhere = shared.integers(0, vocabulary, tokens, 1)
    kind = shared.integers(0, 1 if kept_only else 5, tokens, 1)
    target = torch.where(kind < 3, dominant, torch.where(kind == 3, edge, anywhere))
    return logits.to(ctx.dtype).view(batch, length, columns), target.view(batch, length)
