"""Problem 066: cooperative feature exchange, backward. The harness's side: sizes, inputs, tolerance, cost."""

import torch

from pkb.inputs.graph import count_matrix, relative, seed_ids
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(grad_output, seed_inverse_ids, seed_size, counts_sent, counts_received, None), always float32.

    Uneven counts from one matrix, hub seeds with many rows, some seeds with none, odd h when ragged.
    """
    z, rank = ctx.size, ctx.rank
    matrix = count_matrix(ctx, z.p)  # matrix[r][q]: rows that r sends to q in this direction
    counts_sent = relative(matrix[rank], rank)
    counts_received = relative([row[rank] for row in matrix], rank)
    rows = sum(counts_received)
    seeds = max(4, rows // 2)
    width = z.h - 3 if ctx.variant == "ragged" else z.h
    grad_output = ctx.own.values(sum(counts_sent), width, dtype=torch.float32)
    return grad_output, seed_ids(ctx, rows, seeds, untouched=seeds // 8), seeds, counts_sent, counts_received, None


def admissible(shape: Shape) -> str | None:
    return None if shape.size.h > 3 else f"h={shape.size.h} must be at least 4"


def cost(shape: Shape) -> Cost:
    """(W - 1) p fp32 rows leave each rank; every arriving row is added once. At least 0.6 of them must leave: 65 to 80 per cent of
    a sender's rows for a peer belong to distinct seeds, the others can be added up before they are sent.
    """
    z, w = shape.size, shape.world_size
    rows, row = (w + 0.5) * z.p, 4 * z.h
    return Cost(
        sent_bytes=(w - 1) * z.p * row,
        least_sent_bytes=0.6 * (w - 1) * z.p * row,
        flops=rows * z.h,
        memory_bytes=2 * rows * row + rows / 2 * row + 8 * rows,
        footprint_bytes=2 * rows * row + 2 * 2 * w * z.p * row + rows / 2 * row + 8 * rows,
    )


PROBLEM = Problem(
    title="Cooperative mini-batching, backward: return row gradients to their owners and sum duplicates into unique seeds",
    category="graph parallel",
    source="DGL GraphBolt (gradient of the cooperative convolution)",
    sizes={
        "smoke": {"p": 20, "h": 16},
        "default": {"p": 128, "h": 128},
        "production": {"p": 16_384, "h": 512},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "counts come from one uneven matrix, with zeros; the original's are all equal, which hides mixed-up lists",
        "some seeds are hubs with many rows, some have none; the original's duplication is uniform",
        "one rank sends nothing in one trial",
    ),
    tags=("all-to-all", "scatter-add"),
)
