"""Problem 026: split computation from a routing mask. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch


def _idle_rank(ctx: Context) -> int:
    """The rank without tokens in the edge trial."""
    return ctx.stream("idle").integer(0, ctx.world_size)


def _routing(ctx: Context, tokens: int, num_experts: int) -> torch.Tensor:
    """(T, k) expert indices, distinct within a token: skewed, the popular experts differing by rank, a quarter never used.

    Edge trial: all slots name experts of the rank that has no token itself, some of them twice.
    """
    import torch

    k, nle = ctx.size.k, num_experts // ctx.world_size
    if ctx.variant == "edge":
        return _idle_rank(ctx) * nle + ctx.own.integers(0, nle, tokens, k)
    place = ctx.own.permutation(num_experts)
    popularity = 4.0 / (1 + place)
    popularity[place >= max(k, num_experts - num_experts // 4)] = float("-inf")
    scores = ctx.own.randn(tokens, num_experts, dtype=torch.float32) + popularity
    return scores.topk(k, dim=-1).indices


def make_inputs(ctx: Context) -> tuple:
    """(expert_mask, num_experts, group): fp32 one-hot mask, a permuted view of a (T, k, E) buffer.

    Other than in the plain trial, every rank owns at least four experts and the numbers of tokens differ by rank; one rank
    has no token in the edge trial.
    """
    import torch

    W, tokens, num_experts = ctx.world_size, ctx.size.T, ctx.size.E
    if ctx.variant != "plain":
        num_experts = W * (num_experts // W + 3)
        tokens = ctx.stream("tokens").split(W * tokens, W, least=1)[ctx.rank]
    if ctx.variant == "edge" and ctx.rank == _idle_rank(ctx):
        tokens = 0
    chosen = _routing(ctx, tokens, num_experts)
    mask = torch.zeros(tokens, ctx.size.k, num_experts, dtype=torch.float32, device=ctx.device)
    mask.scatter_(2, chosen.unsqueeze(-1), 1.0)
    return mask.permute(2, 1, 0), num_experts, None if ctx.variant in ("plain", "wide") else ctx.group(range(W))


def admissible(shape: Shape) -> str | None:
    if shape.size.E % shape.world_size:
        return f"E={shape.size.E} experts are not divisible by the number of ranks"
    if shape.size.k > shape.size.E:
        return f"k={shape.size.k} exceeds E={shape.size.E}"
    return None


def cost(shape: Shape) -> Cost:
    """All-to-all of E/W counts per peer (the reference gathers all E); one pass over the mask."""
    W, E, mask = shape.world_size, shape.size.E, shape.size.E * shape.size.k * shape.size.T
    nle = E // W
    return Cost(
        sent_bytes=(W - 1) * nle * 4,
        flops=mask + 2 * E,
        memory_bytes=4 * mask + 16 * W + 4 * W * nle + 4 * nle,
        footprint_bytes=4 * mask + 4 * (W + 2) * E,
    )


PROBLEM = Problem(
    title="Expert-parallel split computation from a local routing mask",
    category="expert parallel",
    source="VeOmni MoE expert parallelism (metadata step before token dispatch)",
    sizes={
        "smoke": {"T": 64, "k": 2, "E": 24},
        "default": {"T": 1024, "k": 2, "E": 8},
        "production": {"T": 16384, "k": 8, "E": 256},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    deviations=(
        "routing is skewed, with popular experts by rank and unused ones; the original's is uniform, all counts near equal",
        "a token's experts are distinct, except in one trial in which all tokens go to one rank and some name an expert twice",
        "every rank owns several experts in all trials but the plain one, and the number of tokens differs by rank",
        "counts are compared exactly; the original accepts 1 %",
    ),
)
