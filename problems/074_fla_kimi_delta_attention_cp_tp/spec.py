"""Problem 074: Kimi Delta Attention, context and tensor parallel. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def grid(world_size: int) -> tuple[int, int]:
    """(context-parallel size C, tensor-parallel size T); rank = c * T + t."""
    return (world_size // 2, 2) if world_size >= 4 and world_size % 2 == 0 else (world_size, 1)


def draw_keys(ctx: Context, rank: int, length: int) -> Any:
    """(B, s, H, K) keys of any rank: the first thing it draws, so that its successor can query them."""
    s = ctx.size
    draw = ctx.own if rank == ctx.rank else ctx.of(rank)
    return draw.values(s.B, length, s.H, s.K)


def draw_queries(ctx: Context, keys: Any, tp_size: int) -> Any:
    """Queries that look for the key half a shard back, which for the first half lies on the previous rank."""
    import torch

    length = keys.shape[1]
    back = max(1, length // 2)
    before = keys
    if ctx.rank >= tp_size:
        before = draw_keys(ctx, ctx.rank - tp_size, length)
    target = torch.cat([before, keys], dim=1)[:, length - back : 2 * length - back]
    noise = ctx.own.values(*keys.shape, scale=0.5)
    return (target.float() + 0.5 * noise.float()).to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(q, k, v, g, beta, a_log, dt_bias, cp_group, tp_group); heads differ by tensor-parallel rank.

    The gates' mean differs by head between -7 and -3 in units of their slope, so that heads remember from a few to
    hundreds of tokens. ragged: an odd shard length. edge: three tokens per shard, some keys and queries zero.
    """
    import torch

    s = ctx.size
    _, tp_size = grid(ctx.world_size)
    cp_rank, tp_rank = divmod(ctx.rank, tp_size)
    length = {"ragged": s.s + 3, "edge": 3}.get(ctx.variant, s.s)

    k = draw_keys(ctx, ctx.rank, length)
    q = draw_queries(ctx, k, tp_size)
    if ctx.variant == "edge":
        q[:, 1] = 0
        k[:, 1] = 0
    v = ctx.own.values(s.B, length, s.H, s.V, scale=2 * s.K**0.5)
    beta = ctx.own.randn(s.B, length, s.H)

    heads = ctx.stream(f"heads of tp rank {tp_rank}")
    slope = heads.uniform(1.0, 16.0, s.H, dtype=torch.float32)
    mean = heads.uniform(-7.0, -3.0, s.H, 1, dtype=torch.float32)
    per_channel = mean + heads.randn(s.H, s.K, scale=0.5, dtype=torch.float32)
    dt_bias = (per_channel / slope[:, None]).flatten().to(torch.bfloat16)
    a_log = slope.log().to(torch.bfloat16)
    g = ctx.own.randn(s.B, length, s.H, s.K, dtype=torch.float32) / slope[:, None]

    cp_group = ctx.group(range(tp_rank, ctx.world_size, tp_size)) if tp_size > 1 else None
    tp_group = ctx.group(range(cp_rank * tp_size, (cp_rank + 1) * tp_size)) if tp_size > 1 else None
    return q, k, v, g.to(ctx.dtype), beta, a_log, dt_bias, cp_group, tp_group


def cost(shape: Shape) -> Cost:
    """One boundary state to the next context-parallel rank (mean over ranks) and the tensor-parallel sum of the own shard.

    At least, of short shards, k, v and gates to all later ranks instead, and the sum's addends, which must leave every rank.
    """
    s, b = shape.size, shape.element_size
    cp_size, tp_size = grid(shape.world_size)
    tokens = s.B * s.s * s.H
    inputs = tokens * (3 * s.K + s.V + 1)
    wide = max(4, b)
    state = wide * s.B * s.H * s.K * s.V * (cp_size - 1) / cp_size
    writes = tokens * (2 * s.K + s.V + 1) * b * (cp_size - 1) / 2
    return Cost(
        sent_bytes=state + 2 * (tp_size - 1) / tp_size * tokens * s.V * b,
        least_sent_bytes=min(state, writes) + (tokens * s.V * b if tp_size > 1 else 0),
        flops=7 * tokens * s.K * s.V,
        memory_bytes=(inputs + tokens * s.V) * b,
        footprint_bytes=cp_size * (3 * inputs * b + 2 * tokens * (4 * s.K + 3 * s.V) * wide),
    )


PROBLEM = Problem(
    title="Kimi Delta Attention over a sequence sharded by context parallelism, summed over tensor parallelism",
    category="tensor parallel",
    source="FLA (flash-linear-attention), Kimi Delta Attention",
    sizes={
        "smoke": {"B": 1, "s": 16, "H": 2, "K": 32, "V": 32},
        "default": {"B": 1, "s": 64, "H": 16, "K": 128, "V": 128},
        "production": {"B": 1, "s": 4096, "H": 16, "K": 128, "V": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "gates are shifted so that heads remember up to hundreds of tokens; the original's state forgets within three tokens, "
        "so that the context exchange can be skipped",
        "queries look for earlier keys, also on the previous rank, and values are scaled up; the original's outputs are tiny",
        "a_log and dt_bias are drawn by tensor-parallel rank and trial; the original's are fixed and nearly neutral",
        "the reference solves chunks of tokens at a time, so that the timing baseline is not one launch per token",
        "as in the original the head outputs of tensor-parallel ranks are summed without an output projection",
    ),
    tags=("context parallel", "all-gather", "all-reduce", "linear attention"),
)
