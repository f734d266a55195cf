"""Problem 064: distributed neighbour sampling. The harness's side: sizes, inputs, tolerance, cost."""

import torch

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A random graph with skewed degrees (some zero) and popular neighbours, really partitioned: a rank holds its own edges only.

    wide: the last hop takes all neighbours. ragged: other numbers of nodes, and of seeds on each rank. edge: few seeds, and one
    rank owns no node.
    """
    z, world = ctx.size, ctx.world_size
    nodes, seeds = z.nodes, z.seeds
    fanouts = hops(z)
    if ctx.variant == "wide":
        fanouts[-1] = -1
    if ctx.variant == "ragged":
        nodes, seeds = nodes - 7, max(8, seeds - 3 - ctx.rank)
    if ctx.variant == "edge":
        seeds = min(seeds, 8)

    # Random ownership with uneven shares.
    share = 1.0 + torch.arange(world, device=ctx.device)[ctx.shared.permutation(world)]
    if ctx.variant == "edge":
        share[ctx.shared.integer(0, world)] = 0.0
    bounds = torch.cumsum(share / share.sum(), 0)
    owner = torch.bucketize(ctx.shared.uniform(0.0, 1.0, nodes, dtype=torch.float32), bounds[:-1], right=True)

    # Log-normal degrees with mean about z.degree, cut at four times that, three per cent zero; popular nodes have small ids.
    degree = (z.degree / 1.5 * torch.exp(ctx.shared.randn(nodes, dtype=torch.float32))).long().clamp(max=4 * z.degree)
    degree[ctx.shared.uniform(0.0, 1.0, nodes, dtype=torch.float32) < 0.03] = 0
    degree = degree.where(owner == ctx.rank, 0)
    pointer = torch.zeros(nodes + 1, dtype=torch.int64, device=ctx.device)
    pointer[1:] = torch.cumsum(degree, 0)
    edges = int(pointer[-1])
    column = (ctx.own.uniform(0.0, 1.0, edges, dtype=torch.float64).square() * nodes).long().clamp(max=nodes - 1)
    return ctx.own.permutation(nodes)[:seeds].clone(), fanouts, pointer, column, owner, None, False


def hops(size) -> list[int]:
    """The fanouts; a zero dimension means that there is no such hop."""
    return [f for f in (size.fanout1, size.fanout2, size.fanout3) if f]


def admissible(shape: Shape) -> str | None:
    z = shape.size
    if z.seeds < 8 or z.nodes < 4 * z.seeds + 8 or z.degree < 3:
        return "need at least 8 seeds, 4 * seeds + 8 nodes and a mean degree of 3, or a frontier may run empty"
    if not hops(z) or min(hops(z)) < 1:
        return "fanouts must be positive, and at least one of them given"
    return None


def cost(shape: Shape) -> Cost:
    """Per hop with frontier F and T sampled edges: requests of 4 bytes, replies of two ids and a count, 4 bytes each.

    At least where each node's range starts and ends, and one id per edge: a requester that reads the owner's arrays sends no
    request, and edge ids follow from the start of the range.

    T is at least a third of the fanout times F (degrees below the fanout), F at least half of the last hop's T where the graph
    is large (the rest has been seen).
    """
    z, w = shape.size, shape.world_size
    sent = least = memory = 0.0
    frontier, listed = float(z.seeds), 0.0
    for fanout in hops(z):
        sampled = frontier * min(fanout, z.degree) / 3
        sent += (4 * frontier + 8 * sampled + 4 * frontier) * (w - 1) / w
        least += (8 * frontier + 4 * sampled) * (w - 1) / w
        memory += 16 * frontier + 16 * sampled + 8 * (frontier + 3 * sampled)
        listed += sampled
        frontier = min(0.5 * sampled, z.nodes / 4)
    most = z.seeds
    for fanout in hops(z):
        most = min(most * (1 + fanout), most + z.nodes * fanout)
    edges = 2 * z.nodes * z.degree * 2 / (w + 1)  # of the rank with the largest share
    return Cost(
        sent_bytes=sent,
        least_sent_bytes=least,
        flops=0,
        memory_bytes=memory,
        footprint_bytes=8 * (2 * z.nodes + edges) + 8 * 20 * most,
    )


PROBLEM = Problem(
    title="Multi-hop distributed neighbour sampling: route frontiers to owners, sample, route back, de-duplicate, relabel",
    category="graph parallel",
    source="PyTorch Geometric (distributed neighbour sampler)",
    sizes={
        "smoke": {"nodes": 600, "degree": 4, "seeds": 24, "fanout1": 4, "fanout2": 3, "fanout3": 0},
        "default": {"nodes": 10_000, "degree": 16, "seeds": 512, "fanout1": 10, "fanout2": 5, "fanout3": 0},
        "production": {"nodes": 20_000_000, "degree": 16, "seeds": 1024, "fanout1": 15, "fanout2": 10, "fanout3": 5},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    oracle="reference",
    tolerance=Tolerance(exact=True),
    deviations=(
        "the graph is partitioned: a rank holds the edges of its own nodes only; the original gives every rank the whole graph, "
        "so that nothing need be communicated",
        "graph, owners and seeds are random, degrees are skewed and ownership uneven; the original is a ring and never varies",
        "nodes of degree zero, a fanout of -1 and a rank that owns nothing occur; ids are compared exactly",
    ),
    tags=("sampling", "all-to-all", "integer"),
)
