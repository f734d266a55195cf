"""Problem 023: token-weighted loss normalisation. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def _counts(ctx: Context) -> list[int]:
    """Valid tokens of every rank: uneven, over decades in the wide trial, none on one rank in the edge trial."""
    shared, most = ctx.stream("counts"), ctx.size.tokens
    if ctx.variant == "wide":
        counts = [int(most ** shared.real(0.2, 1.0)) for _ in range(ctx.world_size)]
    else:
        counts = shared.integers(most // 16 + 1, most + 1, ctx.world_size).tolist()
    if ctx.variant == "edge":
        counts[shared.integer(0, ctx.world_size)] = 0
    return counts


def make_inputs(ctx: Context) -> tuple:
    """(loss, local_valid_tokens, global_valid_tokens, grad_normalized_loss, grad_loss_sum), all 0-d.

    Both terms of the gradient are of order n_r / n_glob and of equal sign, so that neither drowns or cancels the other.
    """
    import torch

    counts = _counts(ctx)
    own, total = counts[ctx.rank], sum(counts)
    loss = ctx.own.uniform(0.5, 12.0, 1)[0]
    if ctx.variant == "integers":
        loss = ctx.own.integers(1, 12, 1, dtype=ctx.dtype)[0]
    if own == 0:
        loss = torch.full_like(loss, ctx.own.choice((math.nan, math.inf, -math.inf)))
    sign = ctx.own.choice((-1.0, 1.0))
    grad_normalized_loss = sign * ctx.own.uniform(0.5, 2.0, 1)[0]
    grad_loss_sum = sign * ctx.own.uniform(0.5, 2.0, 1)[0] / total
    local, everywhere = (torch.tensor(n, dtype=torch.int64, device=ctx.device) for n in (own, total))
    return loss, local, everywhere, grad_normalized_loss, None if ctx.variant == "ragged" else grad_loss_sum


def cost(shape: Shape) -> Cost:
    """All-reduce of one element; everything else is a handful of scalars."""
    share, b = (shape.world_size - 1) / shape.world_size, shape.element_size
    return Cost(sent_bytes=2 * share * b, flops=6, memory_bytes=6 * b + 16, footprint_bytes=12 * b + 16)


PROBLEM = Problem(
    title="Token-weighted loss normalisation across ranks, with its hand-written gradient",
    category="data parallel",
    source="VeOmni-style training loop (loss weighted by valid-token counts)",
    sizes={
        "smoke": {"tokens": 4096},
        "default": {"tokens": 1048576},
        "production": {"tokens": 131072},
    },
    make_inputs=make_inputs,
    cost=cost,
    # four roundings in a row, counts included: a relative error of about two units in the last place
    tolerance=Tolerance(floor_ulps=8),
    deviations=(
        "token counts are drawn per rank, up to the dimension tokens, with their true sum; the original's are all equal, "
        "which makes the weighted mean a plain mean",
        "upstream gradients are random, so that grad_loss is not always 1/W; the second one is None in one trial",
        "losses are positive, so that their sum does not depend on the order; in one trial a rank has no valid token and a "
        "NaN or infinite loss",
    ),
)
