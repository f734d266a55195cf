"""Problem 067: push of sparse embedding gradients. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(idx, value, num_nodes, None): Zipf-distributed ids in random places of the table, one owner favoured, n by rank.

    With more than two ranks one source holds nothing for one owner. ragged: odd h. edge: one rank owns all ids and has no pairs
    itself.
    """
    z, world = ctx.size, ctx.world_size
    shares = [0.5 + i / (world - 1) for i in range(world)]
    n = round(z.n * shares[ctx.shared.permutation(world).tolist()[ctx.rank]])
    hot, silent, avoided = (ctx.shared.integer(0, world) for _ in range(3))
    if ctx.variant == "edge":
        n = 0 if ctx.rank == hot else n

    # Log-uniform ranks follow Zipf's law; an affine map spreads them over the table.
    span = z.num_nodes - world
    place = torch.exp2(ctx.own.uniform(0.0, 1.0, n, dtype=torch.float64) * math.log2(span)).long() - 1
    idx = (place.clamp(0, span - 1) * 7919 + ctx.shared.integer(0, span)) % span
    favoured = ctx.own.uniform(0.0, 1.0, n, dtype=torch.float32) < (2.0 if ctx.variant == "edge" else 0.25)
    idx = torch.where(favoured, idx - idx % world + hot, idx)
    if world > 2 and ctx.rank == silent and ctx.variant != "edge":
        idx = torch.where(idx % world == avoided, idx - avoided + (avoided + 1) % world, idx)
    value = ctx.own.values(n, z.h - 3 if ctx.variant == "ragged" else z.h)
    return idx, value, z.num_nodes, None


def admissible(shape: Shape) -> str | None:
    z = shape.size
    if z.h <= 3 or z.num_nodes <= 4 * shape.world_size:
        return f"need h above 3 and num_nodes above {4 * shape.world_size}, got h={z.h}, num_nodes={z.num_nodes}"
    return None


def cost(shape: Shape) -> Cost:
    """Pairs that belong elsewhere leave the rank: mean over ranks, ids as 8 bytes, 0.8 of (W - 1)/W for the favoured owner."""
    z, w = shape.size, shape.world_size
    pair = z.h * shape.element_size + 8
    return Cost(
        sent_bytes=0.8 * z.n * pair * (w - 1) / w + 8 * (w - 1),
        flops=0,
        memory_bytes=2 * z.n * pair,
        footprint_bytes=1.5 * z.n * (2 * pair + 3 * 8) + 4 * z.n * pair,  # the favoured owner receives up to four times n
    )


PROBLEM = Problem(
    title="Push sparse embedding gradients (row id and row value) to their owners under a modulo partition",
    category="graph parallel",
    source="DGL (sparse push of distributed node-embedding optimisers)",
    sizes={
        "smoke": {"num_nodes": 1_000, "n": 60, "h": 16},
        "default": {"num_nodes": 100_000, "n": 1_024, "h": 128},
        "production": {"num_nodes": 100_000_000, "n": 400_000, "h": 256},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    oracle="reference",
    deviations=(
        "ids follow Zipf's law and favour one owner, n differs by rank, some pairs of ranks exchange nothing; the original's "
        "splits are nearly equal",
        "ids and rows are compared bitwise",
    ),
    tags=("all-to-all", "embedding"),
)
