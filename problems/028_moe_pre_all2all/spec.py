"""Problem 028: MoE dispatch. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch


def _num_experts(ctx: Context) -> int:
    """E as given in the plain trial; at least four per rank in the others, so that regrouping is not the identity."""
    E, W = ctx.size.E, ctx.world_size
    return E if ctx.variant == "plain" else W * (E // W + 3)


def _idle_rank(ctx: Context) -> int:
    """The rank without tokens in the edge trial."""
    return ctx.stream("idle").integer(0, ctx.world_size)


def _num_tokens(ctx: Context) -> list[int]:
    """Tokens of every rank: nominal in the plain trial, different by rank in the others, none on one rank in the edge trial."""
    W, shared = ctx.world_size, ctx.stream("tokens")
    if ctx.variant == "plain":
        return [ctx.size.T] * W
    counts = shared.split(W * ctx.size.T, W, least=1)
    if ctx.variant == "edge":
        counts[_idle_rank(ctx)] = 0
    return counts


def _mask(ctx: Context, rank: int, tokens: int) -> torch.Tensor:
    """(E, k, T) fp32 one-hot routing of any rank: skewed, popular experts by rank, a quarter of the experts never used.

    A token's experts are distinct, except in the edge trial, where all slots name experts of the rank that has no token itself,
    some of them twice.
    """
    import torch

    k, E, routing = ctx.size.k, _num_experts(ctx), ctx.stream(f"routing of rank {rank}")
    if ctx.variant == "edge":
        nle = E // ctx.world_size
        chosen = _idle_rank(ctx) * nle + routing.integers(0, nle, tokens, k)
    else:
        place = routing.permutation(E)
        popularity = 4.0 / (1 + place)
        popularity[place >= max(k, E - E // 4)] = float("-inf")
        chosen = (routing.randn(tokens, E, dtype=torch.float32) + popularity).topk(k, dim=-1).indices
    mask = torch.zeros(tokens, k, E, dtype=torch.float32, device=ctx.device)
    return mask.scatter_(2, chosen.unsqueeze(-1), 1.0).permute(2, 1, 0)


def make_inputs(ctx: Context) -> tuple:
    """The arguments of ``solution``: routing of this rank, and counts that follow from the routing of all ranks.

    hidden_states is three-dimensional in the ragged trial. The counts lie on the CPU, where the preceding step leaves them.
    """
    import torch

    W, r, E = ctx.world_size, ctx.rank, _num_experts(ctx)
    num_tokens = _num_tokens(ctx)
    counts = torch.empty(W, W, E // W, dtype=torch.int64)  # [source, owner, local expert] -> rows
    for source in range(W):
        mask = _mask(ctx, source, num_tokens[source])
        counts[source] = mask.sum(1).bool().sum(1).cpu().view(W, E // W)
        if source == r:
            own_mask = mask

    tokens, width = num_tokens[r], ctx.size.H
    if ctx.variant == "ragged":
        width = max(1, width - 3)
    hidden = ctx.own.values(tokens, width)
    if ctx.variant == "ragged":
        hidden = hidden.view(1, tokens, width)
    return (
        hidden,
        own_mask,
        E,
        counts[r].sum(1).tolist(),
        counts[:, r].sum(1).tolist(),
        counts[:, r].clone(),
        None if ctx.variant in ("plain", "wide") else ctx.group(range(W)),
    )


def admissible(shape: Shape) -> str | None:
    if shape.size.E % shape.world_size:
        return f"E={shape.size.E} experts are not divisible by the number of ranks"
    if shape.size.k > shape.size.E:
        return f"k={shape.size.k} exceeds E={shape.size.E}"
    return None


def cost(shape: Shape) -> Cost:
    """A token must reach every rank that owns one of its experts, where it can be copied once per expert.

    With skewed routing a token may have a single owner, so one crossing per token is counted; the reference sends k rows.
    """
    size, W, b = shape.size, shape.world_size, shape.element_size
    rows, mask = size.k * size.T, size.E * size.k * size.T
    share = (W - 1) / W
    return Cost(
        sent_bytes=share * size.T * size.H * b,
        flops=mask,
        memory_bytes=(size.T + rows) * size.H * b + 4 * mask + 4 * size.E * size.T + 8 * rows,
        # permuted, received and grouped rows; a rank may receive twice the mean
        footprint_bytes=(size.T + 5 * rows) * size.H * b + 4 * mask + 13 * size.E * size.T + 24 * rows,
    )


PROBLEM = Problem(
    title="MoE dispatch: permute tokens by expert, all-to-all, regroup by local expert",
    category="expert parallel",
    source="VeOmni expert parallelism (pre-expert token dispatch; Megatron-style permutation)",
    sizes={
        "smoke": {"T": 64, "H": 32, "E": 24, "k": 2},
        "default": {"T": 1024, "H": 1024, "E": 8, "k": 2},
        "production": {"T": 8192, "H": 7168, "E": 256, "k": 8},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    deviations=(
        "splits and counts follow from the masks of all ranks; the original's are equal whatever the mask says",
        "every rank owns at least four experts in all trials but the plain one; with one expert each, as in the original, "
        "regrouping is the identity",
        "routing is skewed, with popular experts by rank and unused ones, and the number of tokens differs by rank; in one "
        "trial all tokens go to one rank, which has none itself, and some name an expert twice",
        "num_global_tokens_per_local_expert lies on the CPU; one trial has three-dimensional hidden states",
        "everything is compared bit for bit",
    ),
)
