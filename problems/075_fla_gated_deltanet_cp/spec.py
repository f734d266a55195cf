"""Problem 075: Gated DeltaNet under context parallelism. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def draw_keys(ctx: Context, rank: int, length: int) -> Any:
    """(B, s, Hq, K) keys of any rank: the first thing it draws, so that its successor can query them."""
    s = ctx.size
    draw = ctx.own if rank == ctx.rank else ctx.of(rank)
    return draw.values(s.B, length, s.Hq, s.K)


def draw_queries(ctx: Context, keys: Any) -> Any:
    """Queries that look for the key half a shard back, which for the first half lies on the previous rank."""
    import torch

    length = keys.shape[1]
    back = max(1, length // 2)
    before = draw_keys(ctx, ctx.rank - 1, length) if ctx.rank else keys
    target = torch.cat([before, keys], dim=1)[:, length - back : 2 * length - back]
    noise = ctx.own.values(*keys.shape, scale=0.5)
    return (target.float() + 0.5 * noise.float()).to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(q, k, v, gate, beta, a_log, dt_bias): most heads decay by less than a twentieth per token.

    ragged: an odd shard length. edge: three tokens per shard, some keys and queries zero.
    """
    import torch

    s = ctx.size
    length = {"ragged": s.s + 3, "edge": 3}.get(ctx.variant, s.s)
    own_heads = s.Hv // ctx.world_size
    k = draw_keys(ctx, ctx.rank, length)
    q = draw_queries(ctx, k)
    if ctx.variant == "edge":
        q[:, 1] = 0
        k[:, 1] = 0
    v = ctx.own.values(s.B, length, s.Hv, s.V, scale=2 * s.K**0.5)
    gate = ctx.own.randn(s.B, length, s.Hv)
    beta = ctx.own.randn(s.B, length, s.Hv).sigmoid()

    rate = ctx.shared.uniform(0.1, 1.0, s.Hv, dtype=torch.float32)
    bias = ctx.shared.uniform(-6.0, -2.0, s.Hv, dtype=torch.float32)
    mine = slice(ctx.rank * own_heads, (ctx.rank + 1) * own_heads)
    return q, k, v, gate, beta, rate.log().to(torch.bfloat16)[mine], bias.to(torch.bfloat16)[mine]


def admissible(shape: Shape) -> str | None:
    """Heads divide over the ranks and value heads over query heads."""
    s = shape.size
    if s.Hq % shape.world_size or s.Hv % shape.world_size:
        return f"Hq={s.Hq}, Hv={s.Hv} heads do not divide over the ranks; make both multiples of {shape.world_size}"
    if s.Hv % s.Hq:
        return f"Hv={s.Hv} is no multiple of Hq={s.Hq}; change size.Hv"
    return None


def cost(shape: Shape) -> Cost:
    """Inputs to the head owners, outputs back; 7 K V operations per token and value head. At least, for long shards, the states
    of all heads go down a chain of ranks instead (mean over ranks).
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    tokens = s.B * s.s
    inputs = tokens * (2 * s.Hq * s.K + s.Hv * s.V + 2 * s.Hv)
    outputs = tokens * s.Hv * s.V
    states = s.B * s.Hv * s.K * s.V * max(4, b)
    scan = tokens * s.Hv * (4 * s.K + 4 * s.V)
    return Cost(
        sent_bytes=(world_size - 1) / world_size * (inputs + outputs) * b,
        least_sent_bytes=(world_size - 1) / world_size * min((inputs + outputs) * b, states),
        flops=7 * tokens * s.Hv * s.K * s.V,
        memory_bytes=(inputs + outputs) * b,
        footprint_bytes=(4 * inputs + 3 * outputs) * b + 2 * scan * max(4, b),
    )


PROBLEM = Problem(
    title="Gated DeltaNet over a sequence sharded by context parallelism: all-to-all, scan, all-to-all",
    category="context parallel",
    source="FLA (flash-linear-attention), Gated DeltaNet with head-scatter context parallelism",
    sizes={
        "smoke": {"B": 1, "s": 16, "Hq": 4, "Hv": 8, "K": 16, "V": 32},
        "default": {"B": 1, "s": 64, "Hq": 8, "Hv": 8, "K": 256, "V": 512},
        "production": {"B": 1, "s": 4096, "Hq": 16, "Hv": 32, "K": 128, "V": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "gates are shifted so that heads remember up to hundreds of tokens; the original's state halves every token, so that "
        "the exchange can be skipped",
        "queries look for earlier keys, also on the previous rank, and values are scaled up; the original's outputs are tiny",
        "a_log and dt_bias are drawn by head and trial; the original's are evenly spaced and fixed",
        "smoke and production have two value heads per query head; the original always one",
        "the reference solves chunks of tokens at a time, so that the timing baseline is not one launch per token",
    ),
    tags=("all-to-all", "linear attention"),
)
