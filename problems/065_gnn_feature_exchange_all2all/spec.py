"""Problem 065: cooperative feature exchange, forward. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.graph import count_matrix, relative, seed_ids
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """(local_features, seed_inverse_ids, counts_sent, counts_received, None): uneven counts from one matrix, odd h when ragged."""
    z, rank = ctx.size, ctx.rank
    matrix = count_matrix(ctx, z.p)  # matrix[r][q]: rows that r sends to q in this direction
    counts_received = relative(matrix[rank], rank)
    counts_sent = relative([row[rank] for row in matrix], rank)
    rows = sum(counts_received)
    seeds = max(1, 3 * rows // 4)
    features = ctx.own.values(seeds, z.h - 3 if ctx.variant == "ragged" else z.h)
    return features, seed_ids(ctx, rows, seeds), counts_sent, counts_received, None


def admissible(shape: Shape) -> str | None:
    return None if shape.size.h > 3 else f"h={shape.size.h} must be at least 4"


def cost(shape: Shape) -> Cost:
    """(W - 1) p rows of h elements leave each rank; as many arrive on average, besides its own 1.5 p. At least 0.8 of them: more
    than that differ for a peer, a row that it wants twice can travel once.
    """
    z, w, e = shape.size, shape.world_size, shape.element_size
    rows = (w + 0.5) * z.p
    row = z.h * e
    return Cost(
        sent_bytes=(w - 1) * z.p * row,
        least_sent_bytes=0.8 * (w - 1) * z.p * row,
        flops=0,
        memory_bytes=0.75 * rows * row + 8 * rows + rows * row,
        footprint_bytes=0.75 * rows * row + 8 * rows + 3 * rows * row + 2 * 2 * w * z.p * row,
    )


PROBLEM = Problem(
    title="Cooperative mini-batching, forward: gather requested rows and exchange them with a rank-shifted all-to-all-v",
    category="graph parallel",
    source="DGL GraphBolt (cooperative convolution)",
    sizes={
        "smoke": {"p": 20, "h": 16},
        "default": {"p": 128, "h": 128},
        "production": {"p": 16_384, "h": 512},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    oracle="reference",
    deviations=(
        "counts come from one uneven matrix, with zeros; the original's are all equal, which hides mixed-up lists",
        "every seed is asked for, popular ones many times; the original's requests are uniform",
        "one rank sends nothing in one trial",
    ),
    tags=("all-to-all", "gather"),
)
