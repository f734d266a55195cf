"""Problem 068: fetch rows of a sharded embedding table and project them. Sizes, inputs, tolerance, cost."""

import math
from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def table_rows(ctx: Context) -> int:
    """V: nominal, or three fewer in the ragged trial, so that the last shard is the shorter one."""
    return ctx.size.V - 3 if ctx.variant == "ragged" else ctx.size.V


def on_grid(x: Any) -> Any:
    """Multiples of 1/8 below 4 in magnitude: products of two such numbers and their sums are exact in float32.

    So the projection has one rounding, to the output's dtype, and the reference itself can be the oracle: a float64 copy of
    the table (tens of GB) is not needed.
    """
    return (x * 8).round().clamp(-31, 31) / 8


def draw_rows(ctx: Context, count: int) -> Any:
    """(count, d) table rows, normal on a grid; in the wide trial each row times a power of two."""
    import torch

    values = on_grid(ctx.own.randn(count, ctx.size.d, dtype=torch.float32))
    if ctx.variant == "wide":
        values *= torch.exp2(ctx.own.integers(-8, 3, count, 1))
    return values.to(ctx.dtype)


def draw_shard(ctx: Context, rows: int, ids: Any) -> Any:
    """This rank's ``rows`` table rows: of them those that any rank asks for (``ids``), and about as many more, are drawn.

    The others are a fixed pattern: they are never fetched, and a table of tens of GB need not be drawn or sent. The rows that are
    drawn in vain are there so that looking for those that differ from the pattern does not tell which are fetched.
    """
    import torch

    from pkb.table import Table

    local = ids - ctx.rank * -(-table_rows(ctx) // ctx.world_size)
    wanted = torch.unique(local[(local >= 0) & (local < rows)])
    others = ctx.own.integers(0, rows, max(wanted.numel(), ctx.size.q))
    drawn = torch.unique(torch.cat([wanted, others]))
    return Table(rows, drawn, draw_rows(ctx, drawn.numel()))


def num_queries(ctx: Context) -> list[int]:
    """Ids wanted by each rank: uneven, q on average over the ranks; the last rank wants none in the edge trial."""
    import torch

    spread = ctx.shared.uniform(-0.25, 0.25, ctx.world_size, dtype=torch.float64)
    spread = spread - spread.mean()
    counts = [round(ctx.size.q * (1 + x)) for x in spread.tolist()]
    return [*counts[:-1], 0] if ctx.variant == "edge" else counts


def draw_ids(ctx: Context, rank: int, total: int, count: int) -> Any:
    """(count,) ids that any rank asks for: the first thing it draws, so that owners know which of their rows will be fetched.

    Zipf popularity (exponent 1): log-uniform popularity ranks under a random affine permutation.
    """
    import torch

    draw = ctx.own if rank == ctx.rank else ctx.of(rank)
    multiplier = ctx.stream("permutation").integer(total // 3, total)
    while math.gcd(multiplier, total) != 1:
        multiplier += 1
    offset = ctx.stream("offset").integer(0, total)
    popularity = torch.exp(draw.uniform(0.0, 1.0, count, dtype=torch.float64) * math.log(total)).long() - 1
    ids = (popularity.clamp(0, total - 1) * multiplier + offset) % total
    if ctx.variant == "edge":  # nobody asks the owner of the first rows
        first_shard = -(-total // ctx.world_size)
        ids = torch.where(ids < first_shard, first_shard + ids % (total - first_shard), ids)
    return ids


def make_inputs(ctx: Context) -> tuple:
    """(local_embedding_shard, input_node_ids, proj_matrix, num_total_nodes); the shard as a Table."""
    import torch

    total = table_rows(ctx)
    per_rank = -(-total // ctx.world_size)
    rows = min(per_rank, total - ctx.rank * per_rank)
    ids = [draw_ids(ctx, rank, total, count) for rank, count in enumerate(num_queries(ctx))]
    shard = draw_shard(ctx, rows, torch.cat(ids))
    normal = ctx.stream("projection").randn(ctx.size.d, ctx.size.o, dtype=torch.float32)
    proj = (on_grid(normal) * 2.0 ** -round(math.log2(ctx.size.d) / 2)).to(ctx.dtype)
    return shard, ids[ctx.rank], proj, total


def admissible(shape: Shape) -> str | None:
    """Every rank must own rows, also in the ragged trial."""
    fewest = shape.size.V - 3
    if (shape.world_size - 1) * -(-fewest // shape.world_size) >= fewest:
        return f"V={shape.size.V} rows leave the last rank without any; raise size.V to {shape.world_size**2 + 3} or more"
    return None


def cost(shape: Shape) -> Cost:
    """Each distinct remote row once, as a row or as its projection, whichever is shorter; 2 q d o operations.

    Distinct ids under the log-uniform popularity: the q / ln V most popular ids are all seen, rarer ones once each.
    """
    s, b = shape.size, shape.element_size
    log_v = math.log(s.V)
    popular = s.q / log_v
    distinct = popular + s.q * max(0.0, 1 - math.log(max(popular, 1.0)) / log_v)
    remote = (shape.world_size - 1) / shape.world_size
    table = -(-s.V // shape.world_size) * s.d * b
    return Cost(
        sent_bytes=remote * distinct * min(s.d, s.o) * b,
        flops=2 * distinct * s.d * s.o,
        memory_bytes=distinct * s.d * b + s.d * s.o * b + s.q * (s.o * b + 8),
        footprint_bytes=table + 1.3 * s.q * (4 * s.d * b + s.o * b + 6 * 8) + s.d * s.o * b,
    )


PROBLEM = Problem(
    title="Fetch embedding rows of arbitrary global ids from a row-sharded table and project them",
    category="graph parallel",
    source="DGL / GraphStorm (distributed sparse node embeddings with input projection), sizes of ogbn-papers100M",
    sizes={
        "smoke": {"V": 4001, "d": 64, "o": 32, "q": 400},
        "default": {"V": 111_000_000, "d": 256, "o": 256, "q": 20_000},
        "production": {"V": 111_000_000, "d": 256, "o": 256, "q": 200_000},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    deviations=(
        "ids are drawn by rank and trial with Zipf popularity (duplicates, uneven owners, a different number per rank); the "
        "original's follow one fixed, exactly balanced formula without duplicates",
        "proj_matrix is the same on all ranks and scaled by about 1/sqrt(d); the original draws an unscaled one per rank",
        "table and projection lie on a grid on which sums are exact in float32",
        "of the table only rows that are fetched, and as many others, are drawn anew for each trial; the rest is a fixed pattern",
        "V is a dimension of the size and one trial has a shorter last shard; the original's is fixed and a multiple of W",
    ),
    tags=("all-to-all",),
)
