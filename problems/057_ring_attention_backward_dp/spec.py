"""Problem 057: ring attention backward with data-parallel averaging. The harness's side: sizes, inputs, tolerance, cost."""

import torch

from pkb.inputs.attention import attention_mode, matching_queries
from pkb.problem import Context, Cost, Problem, Shape


def dp_size(shape: Shape) -> int:
    """Data-parallel replicas at the nominal layout; at least two ranks are left for the ring."""
    return max(1, min(shape.size.DP, shape.world_size // 2))


def make_inputs(ctx: Context) -> tuple:
    """Rank = dp_rank * C + cp_rank. out and softmax_lse are those of the forward pass over the whole sequence.

    One ring over all ranks in the integers trial; a few positions, without a ring, in the edge trial.
    """
    z, world = ctx.size, ctx.world_size
    replicas = {"integers": 1, "edge": world}.get(ctx.variant, dp_size(ctx))
    ring = world // replicas
    first = ctx.rank // ring * ring
    cp_rank = ctx.rank - first

    positions = {"ragged": z.S + 3, "edge": min(z.S, 5)}.get(ctx.variant, z.S)
    causal, softmax_scale = attention_mode(ctx, z.D)
    scale = z.D**-0.5 if softmax_scale is None else softmax_scale
    shape = (z.B, positions, z.H, z.D)
    pairs = [keys_and_values(draw, shape) for draw in map(ctx.of, range(first, first + ring))]
    keys, values = (torch.cat(x, dim=1) for x in zip(*pairs, strict=True))
    k, v = keys_and_values(ctx.own, shape)
    start = cp_rank * positions
    q = matching_queries(ctx.own, keys, start, positions, causal, scale)
    dout = ctx.own.values(*shape)
    out, lse = forward(q, keys, values, start, causal, scale)
    cp_group = ctx.group(range(first, first + ring)) if ring < world else None
    dp_group = ctx.group(range(cp_rank, world, ring)) if replicas > 1 else None
    return dout, q, k, v, out, lse, softmax_scale, causal, cp_group, dp_group


def keys_and_values(draw, shape: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """The first draws of a rank, so that its peers can repeat them."""
    return draw.randn(*shape), draw.values(*shape)


def forward(q, keys, values, start: int, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries at positions ``start`` on over all keys: output in q's dtype, log-sum-exp (B, H, S) in fp32."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    at = torch.arange(start, start + q.shape[1], device=q.device)
    future = torch.arange(keys.shape[1], device=q.device)[None, :] > at[:, None]
    for head in range(q.shape[2]):  # one head at a time: the scores of all heads need not fit
        scores = q[:, :, head].float() @ keys[:, :, head].float().transpose(1, 2) * scale
        if causal:
            scores = scores.masked_fill(future, float("-inf"))
        lse[:, head] = torch.logsumexp(scores, dim=-1)
        out[:, :, head] = (torch.softmax(scores, dim=-1) @ values[:, :, head].float()).to(q.dtype)
    return out, lse


def admissible(shape: Shape) -> str | None:
    if shape.world_size % dp_size(shape):
        return f"DP={dp_size(shape)} must divide the {shape.world_size} ranks"
    return None


def cost(shape: Shape) -> Cost:
    """Causal, as timed: keys and values to the ranks above on the ring, their float32 gradients back (mean over ranks), and the
    DP all-reduce of three gradients.

    At least, for each pair of ranks, the later one's q and dout (or the earlier one's k and v) must cross and one gradient must
    come back, 3 n e bytes in all; on large rings it takes less to exchange q, k, v, dout and the gradients for heads. The
    all-reduce's addends must leave every rank.
    """
    z, e, d = shape.size, shape.element_size, dp_size(shape)
    ring = shape.world_size // d
    n = z.B * z.S * z.H * z.D
    return Cost(
        sent_bytes=(ring - 1) * n * (e + 4) + 2 * (d - 1) / d * 3 * n * e,
        least_sent_bytes=(ring - 1) * min(1.5, 7 / ring) * n * e + (3 * n * e if d > 1 else 0),
        flops=10 * z.B * z.H * z.D * z.S**2 * ring / 2,
        memory_bytes=5 * n * e + 4 * z.B * z.H * z.S + (ring - 1) * n * e + 3 * n * e,
        footprint_bytes=14 * n * e + 18 * n * 4 + 6 * 4 * z.B * z.H * z.S**2,
    )


PROBLEM = Problem(
    title="Ring attention backward: K/V and their gradients travel around the ring, results are averaged over replicas",
    category="data parallel",
    source="ring-flash-attention (backward) with Megatron-LM's cp-dp rank order",
    sizes={
        "smoke": {"DP": 2, "B": 2, "S": 24, "H": 4, "D": 16},
        "default": {"DP": 2, "B": 16, "S": 4, "H": 8, "D": 64},
        "production": {"DP": 2, "B": 1, "S": 8192, "H": 16, "D": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "out and softmax_lse come from the forward pass over the whole sequence; the original's cover the local shard only, "
        "which makes no gradient",
        "causal and not, default and explicit scale occur, queries match planted keys; the original is never causal",
        "DP sizes 1, DP and all ranks occur; any number of ranks is admissible, not only divisors of 8",
    ),
    tags=("attention", "ring", "context parallel", "backward"),
)
