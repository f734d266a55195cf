"""Problem 029: MoE combine. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.dispatch import choose_experts, expert_counts, odds_of, tokens_by_rank
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Outputs of the experts and a routing that all ranks agree on.

    Every rank redraws the routing of all ranks, so that what one sends is what the other expects. Trials other than the
    plain one use several experts per rank (at least four, and at least k), and an odd row width in the ragged trial.
    """
    import torch

    size, world_size, rank = ctx.size, ctx.world_size, ctx.rank
    num_experts = size.E if ctx.variant == "plain" else max(size.E, max(4, size.k) * world_size)
    hidden = size.H - 3 if ctx.variant == "ragged" else size.H
    local = num_experts // world_size
    tokens = tokens_by_rank(ctx, size.T)

    def routing(r: int) -> torch.Tensor:
        return choose_experts(ctx.of(r), tokens[r], odds_of(ctx, num_experts, size.k, rank=r), size.k)

    counts = torch.stack([expert_counts(routing(r), num_experts) for r in range(world_size)])
    by_owner = counts.view(world_size, world_size, local)  # [source, owner, local expert]
    input_splits = by_owner[rank].sum(dim=1).tolist()
    output_splits = by_owner[:, rank].sum(dim=1).tolist()

    experts = routing(rank)
    routing_map = torch.zeros(num_experts, tokens[rank], dtype=torch.bool, device=ctx.device)
    routing_map.scatter_(0, experts.T, True)
    mapping = routing_map.nonzero()[:, 1].contiguous()
    rows = ctx.stream("rows", shared=False)
    weights = torch.softmax(rows.randn(tokens[rank], size.k, dtype=torch.float32), dim=1).to(ctx.dtype)
    expert_outputs = rows.values(sum(output_splits), hidden)
    return (
        expert_outputs,
        weights,
        experts,
        num_experts,
        input_splits,
        output_splits,
        by_owner[:, rank].contiguous(),
        routing_map,
        mapping,
        torch.Size((tokens[rank], hidden)),
        None,
    )


def admissible(shape: Shape) -> str | None:
    if shape.size.E % shape.world_size:
        return f"E={shape.size.E} experts cannot be shared equally by {shape.world_size} ranks; set size.E to a multiple"
    if shape.size.k > shape.size.E:
        return f"a token cannot choose k={shape.size.k} distinct experts out of E={shape.size.E}"
    return None


def cost(shape: Shape) -> Cost:
    """R = k T rows each way when balanced: all-to-all of the rows, one multiply and one add per element."""
    s, b = shape.size, shape.element_size
    rows = s.k * s.T
    row_bytes = rows * s.H * b
    metadata = rows * (8 + b) + 8 * rows
    # The busiest rank receives more than its share; inputs, regrouped, received and weighted rows, and the fp32 sums.
    footprint = 4 * row_bytes + rows * s.H * 4 + s.T * s.H * (4 + b) + metadata + s.E * s.T * (1 + 2 * b)
    return Cost(
        sent_bytes=row_bytes * (shape.world_size - 1) / shape.world_size,
        flops=2 * rows * s.H,
        memory_bytes=row_bytes + s.T * s.H * b + metadata,
        footprint_bytes=2 * footprint,
    )


PROBLEM = Problem(
    title="MoE combine: regroup by source rank, all-to-all back, weight and add into token order",
    category="expert parallel",
    source="VeOmni expert parallelism (post-expert combine; Megatron-style unpermutation)",
    sizes={
        "smoke": {"T": 64, "H": 32, "E": 24, "k": 2},
        "default": {"T": 1024, "H": 1024, "E": 8, "k": 2},
        "production": {"T": 8192, "H": 7168, "E": 256, "k": 8},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "splits and row counts follow from the routing of all ranks; the original's are equal and ignore the routing",
        "routing is skewed, differs by rank and trial, leaves an expert empty, and the number of tokens differs by rank",
        "selected experts come in order of score, not ascending",
        "the weighted rows of a token are added in fp32 and rounded once; the original adds in the dtype of the rows",
        "trials other than the first have at least four experts per rank, so that the regrouping is no identity",
    ),
    tags=("all-to-all",),
)
