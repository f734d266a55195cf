"""Problem 077: chunk-causal attention with overlapped exchanges. Sizes, inputs, tolerance, cost."""

import math
from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def draw_key_value(ctx: Context, rank: int, tokens: int, kv_heads: int) -> Any:
    """(n, Hkv, 2D) of any rank: the first thing it draws, so that queries can look for keys of other ranks."""
    draw = ctx.own if rank == ctx.rank else ctx.of(rank)
    return draw.values(tokens, kv_heads, 2 * ctx.size.D)


def draw_windows(ctx: Context, num_ranges: int, rows: int) -> Any:
    """(R, 2): range r ends its window with its own rows and starts up to ``reach`` ranges earlier.

    plain: exactly min(r, reach) earlier, so that the timed work is known; otherwise anywhere in that stretch.
    """
    import torch

    windows = []
    for r in range(num_ranges):
        earliest = max(0, r - ctx.size.reach) * rows
        start = earliest if ctx.variant == "plain" else ctx.shared.integer(earliest, r * rows + 1)
        windows.append([start, (r + 1) * rows])
    return torch.tensor(windows, dtype=torch.int64, device=ctx.device)


def draw_queries(ctx: Context, key_values: list[Any], windows: Any, per_range: int, rows: int) -> Any:
    """(n, Hq, D): noise plus, per token and head, a random key of its window, scaled so that the softmax finds it."""
    import torch

    s = ctx.size
    num_ranges, kv_heads = windows.shape[0], key_values[0].shape[1]
    keys = torch.stack([kv[..., : s.D] for kv in key_values])  # (W, n, Hkv, D)
    serving = torch.arange(s.Hq, device=ctx.device) * kv_heads // s.Hq  # the kv head of every query head
    queries = ctx.own.randn(num_ranges * per_range, s.Hq, s.D, scale=0.3, dtype=torch.float32)
    for r, (start, end) in enumerate(windows.tolist()):
        row = ctx.own.integers(start, end, per_range, s.Hq)
        in_range = row % rows
        token = row // rows * per_range + in_range % per_range
        target = keys[in_range // per_range, token, serving].float()  # (p, Hq, D)
        score = math.log(end - start) + 4.5
        unit = target / target.square().sum(dim=-1, keepdim=True).clamp_min(1e-6)
        queries[r * per_range : (r + 1) * per_range] += score * s.D**0.5 * unit
    return queries.to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(query, key_value, k_ranges, cp_shuffle_num, clip_token_nums).

    integers: one range without overlap. wide: two ranges, no clipping. ragged: the clip cuts nearly a rank's tokens.
    edge: one kv head, repeated on all ranks, three ranges, clip 0 (keep all).
    """
    s, world_size = ctx.size, ctx.world_size
    num_ranges = {"integers": 1, "wide": 2, "edge": 3}.get(ctx.variant, s.R)
    rows = s.c - 3 if ctx.variant == "ragged" else s.c
    per_range = -(-rows // world_size)
    clip: int | None = rows
    if ctx.variant == "ragged":
        clip = rows = world_size * per_range - (per_range - 1)
    if ctx.variant in ("wide", "edge"):
        clip, rows = (None if ctx.variant == "wide" else 0), world_size * per_range
    kv_heads = 1 if ctx.variant == "edge" else s.Hkv
    tokens = num_ranges * per_range
    key_values = [draw_key_value(ctx, rank, tokens, kv_heads) for rank in range(world_size)]
    windows = draw_windows(ctx, num_ranges, rows)
    query = draw_queries(ctx, key_values, windows, per_range, rows)
    return query, key_values[ctx.rank], windows, num_ranges, clip


def admissible(shape: Shape) -> str | None:
    """Query heads divide over the ranks; kv heads divide over them or the ranks over kv heads; groups are whole."""
    s, world_size = shape.size, shape.world_size
    heads = max(s.Hkv, world_size)
    if s.Hq % world_size:
        return f"Hq={s.Hq} query heads do not divide over the ranks; make size.Hq a multiple of {world_size}"
    if s.Hkv % world_size and world_size % s.Hkv:
        return f"Hkv={s.Hkv} key/value heads neither divide over the ranks nor into them; change size.Hkv"
    if s.Hq % heads:
        return f"Hq={s.Hq} query heads do not share {heads} key/value heads evenly; change size.Hq"
    return None


def cost(shape: Shape) -> Cost:
    """Queries, outputs, keys and values (at least one head per rank) exchanged for heads; 4 D operations per query head and row
    of its window.

    At least keys and values of each head once, or on few ranks keys and values of all heads to all ranks and nothing else.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    per_range = -(-s.c // world_size)
    tokens = s.R * per_range
    kv_heads = max(s.Hkv, world_size)
    rows = sum(min(r, s.reach) + 1 for r in range(s.R)) * s.c
    remote = (world_size - 1) / world_size
    least = tokens * s.D * min(remote * (2 * s.Hq + 2 * s.Hkv), (world_size - 1) * 2 * s.Hkv)
    return Cost(
        sent_bytes=remote * tokens * s.D * (2 * s.Hq + 2 * kv_heads) * b,
        least_sent_bytes=least * b,
        flops=4 * world_size * per_range * rows * s.Hq / world_size * s.D,
        memory_bytes=tokens * s.D * (2 * s.Hq + 2 * s.Hkv) * b,
        footprint_bytes=tokens * s.D * (6 * s.Hq + 8 * kv_heads) * b + world_size * per_range * s.D * 6 * 4,
    )


PROBLEM = Problem(
    title="Chunk-causal attention under context parallelism with exchanges overlapped range by range",
    category="context parallel",
    source="MAGI-1 (context shuffle overlap)",
    sizes={
        "smoke": {"Hq": 8, "Hkv": 4, "D": 32, "R": 4, "c": 62, "reach": 2},
        "default": {"Hq": 48, "Hkv": 8, "D": 128, "R": 4, "c": 21600, "reach": 1},
        "production": {"Hq": 48, "Hkv": 8, "D": 128, "R": 4, "c": 21590, "reach": 3},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "windows reach back over earlier ranges and differ by range and trial; the original's ranges see only themselves",
        "every query looks for a key of its window, mostly on another rank; the original's attention is nearly uniform",
        "the number of ranges, clipping and repeated key/value heads vary by trial; sizes do not depend on the world size",
    ),
    tags=("all-to-all", "attention"),
)
