"""Problem 083: filtered log-probabilities, chunk by chunk. Sizes, inputs, tolerance, cost."""

import math

from pkb.inputs import filtered_logits
from pkb.problem import Context, Cost, Problem, Shape


def filters(ctx: Context) -> tuple[int | None, float | None]:
    """(top_k, top_p) of the trial: both; only top-k; only top-p; none; both with few or more than all classes."""
    top_k, top_p = ctx.size.top_k, ctx.size.top_p_percent / 100
    few_or_all = 3 if ctx.trial // 5 % 2 == 0 else ctx.size.V + 3
    return {
        "integers": (top_k, 1.0),
        "wide": (None, top_p),
        "ragged": (0, None),
        "edge": (few_or_all, top_p),
    }.get(ctx.variant, (top_k, top_p))


def make_inputs(ctx: Context) -> tuple:
    """(vocab_parallel_logits, target, tp_group, top_k, top_p, chunk_size).

    Filtered targets occur in all but the plain trial. ragged: one short chunk. edge: the smallest chunks allowed.
    """
    s = ctx.size
    smallest = ctx.world_size // math.gcd(s.B, ctx.world_size)
    chunk = {"ragged": s.S + smallest, "edge": 0 if smallest == 1 else smallest}.get(ctx.variant, s.chunk_size)
    columns = s.V // ctx.world_size - (3 if ctx.variant == "ragged" else 0)
    top_k, top_p = filters(ctx)
    logits, target = filtered_logits.draw(ctx, s.B, s.S, columns, top_k, top_p, kept_only=ctx.variant == "plain")
    return logits, target, None, top_k, top_p, chunk


def admissible(shape: Shape) -> str | None:
    """Classes and tokens divide over the ranks."""
    s, world_size = shape.size, shape.world_size
    if s.V % world_size or s.V // world_size < 8:
        return f"V={s.V} must be a multiple of the {world_size} ranks, at least 8 per rank; change size.V"
    if s.B * s.S % world_size:
        return f"B*S={s.B * s.S} tokens do not divide over {world_size} ranks; change size.S"
    if s.B * s.chunk_size % world_size or s.S % (world_size // math.gcd(s.B, world_size)):
        return (
            f"chunks of B*chunk_size={s.B * s.chunk_size} tokens do not divide over {world_size} ranks; change size.chunk_size"
        )
    if not 88 <= s.top_p_percent <= 96:
        return f"top_p_percent={s.top_p_percent} must lie in 88..96, where inputs with clear cuts can be drawn"
    return None


def cost(shape: Shape) -> Cost:
    """Local top-k candidates to the owner of each token and one float per token back; one pass over the logits. At least the
    values: the candidates' ids need not travel.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    tokens, columns = s.B * s.S, s.V // world_size
    candidates = min(s.top_k, columns)
    remote = (world_size - 1) / world_size
    rows = min(tokens, s.B * s.chunk_size) / world_size * s.V
    return Cost(
        sent_bytes=remote * tokens * (candidates * (b + 4) + 4),
        least_sent_bytes=remote * tokens * (candidates * b + 4),
        flops=tokens * columns,
        memory_bytes=tokens * columns * b + 4 * tokens,
        footprint_bytes=tokens * columns * b + rows * (6 * b + 8 + 4 + 1 + 8) + 24 * tokens,
    )


PROBLEM = Problem(
    title="Log-probabilities under top-k / top-p sampling from vocabulary-sharded logits, in chunks of tokens",
    category="vocab parallel",
    source="NeMo-RL (chunked tensor-parallel log-probabilities)",
    sizes={
        "smoke": {"B": 2, "S": 20, "V": 512, "top_k": 10, "top_p_percent": 90, "chunk_size": 8},
        "default": {"B": 2, "S": 8, "V": 256, "top_k": 10, "top_p_percent": 90, "chunk_size": 8},
        "production": {"B": 4, "S": 4096, "V": 151936, "top_k": 50, "top_p_percent": 95, "chunk_size": 256},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "several classes survive the filters and targets lie in the nucleus, at its edge and outside; the original's target "
        "is nearly always the only survivor, so that zeros pass",
        "no running sum lies near 1 - top_p, so that rounding does not decide who survives",
        "trials cycle through the four combinations of the filters; the original has one",
        "targets are random; chunk_size varies by trial and the last chunk is shorter where sizes allow",
    ),
    tags=("all-to-all", "all-gather", "top-k"),
)
