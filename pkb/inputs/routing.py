"""Tokens, router and experts of mixture-of-experts layers: routing that is skewed and decided by a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pkb.draw import Draw
from pkb.problem import Context


def linear(draw: Draw, n_in: int, n_out: int, gain: float = 1.0) -> Any:
    """An ``nn.Linear`` with bias, weights of standard deviation gain/sqrt(n_in), in the requested dtype, without gradients."""
    import torch

    layer = torch.nn.utils.skip_init(torch.nn.Linear, n_in, n_out, device=draw.device, dtype=draw.dtype)
    with torch.no_grad():
        layer.weight.copy_(draw.randn(n_out, n_in, scale=gain / math.sqrt(n_in)))
        layer.bias.copy_(draw.randn(n_out, scale=0.3 * gain))
    return layer.requires_grad_(False)


def popularity(draw: Draw, experts: int, empty: Sequence[int] = ()) -> Any:
    """How often each expert is chosen, float32 (experts,): Zipf's 1/(i+1) in random order, zero for those in ``empty``."""
    import torch

    weights = 1.0 / (1.0 + torch.arange(experts, device=draw.device, dtype=torch.float32))
    weights = weights[draw.permutation(experts)]
    weights[list(empty)] = 0.0
    return weights


def routed_tokens(draw: Draw, tokens: int, top_k: int, weights: Any, gate_weight: Any, gate_bias: Any) -> Any:
    """Token features (tokens, H) whose router logits have a gap of at least 0.5 between places k and k+1.

    Each token chooses ``top_k`` distinct experts with odds ``weights`` (E,). The features are ``draw.values`` moved by the
    least-norm correction that gives ``features @ gate_weight.T + gate_bias`` its planned values: chosen experts in
    [0.5, 2), others in [-2, 0). Needs E <= H. Rounding to bfloat16 moves a logit by about 0.01.
    """
    import torch

    experts, hidden = gate_weight.shape
    odds = torch.log(weights) - torch.log(-torch.log(draw.uniform(1e-6, 1.0, tokens, experts, dtype=torch.float32)))
    chosen = torch.topk(odds, top_k, dim=1).indices  # the Gumbel trick: k draws without replacement
    planned = draw.uniform(-2.0, 0.0, tokens, experts, dtype=torch.float32)
    planned.scatter_(1, chosen, draw.uniform(0.5, 2.0, tokens, top_k, dtype=torch.float32))

    features = draw.values(tokens, hidden, dtype=torch.float32)
    gate = gate_weight.float()
    logits = features @ gate.t() + (0.0 if gate_bias is None else gate_bias.float())
    return (features + (planned - logits) @ torch.linalg.pinv(gate).t()).to(draw.dtype)


def moe_layer(
    ctx: Context, tokens: int, hidden: int, inner: int, experts: int, top_k: int, group_size: int, expert: Draw
) -> list[Any]:
    """hidden_states, gate_weight, gate_bias, gate_proj, up_proj, down_proj of an expert-parallel layer on this rank.

    The router is equal on all ranks, popularity follows Zipf's law, the expert's weights come from ``expert``. Ragged trial:
    fewer tokens, another number on each rank, and no gate bias. Edge trial: all tokens of all ranks choose the same ``top_k``
    neighbouring experts, the others get none, and the rank of each group that holds the first of them has no tokens of its
    own. Outputs are of order one.
    """
    bias = None
    gate = ctx.shared.randn(experts, hidden, scale=2.0 / math.sqrt(hidden))
    odds = popularity(ctx.shared, experts)
    if ctx.variant == "ragged":
        tokens = max(1, tokens - 3 - ctx.rank)
    else:
        bias = ctx.shared.randn(experts, scale=0.5)
    if ctx.variant == "edge":
        first = top_k * ctx.shared.integer(0, experts // top_k)
        odds = popularity(ctx.shared, experts, empty=[x for x in range(experts) if not first <= x < first + top_k])
        tokens = 0 if ctx.rank % group_size == first * group_size // experts else tokens
    features = routed_tokens(ctx.own, tokens, top_k, odds, gate, bias)
    layers = [linear(expert, hidden, inner), linear(expert, hidden, inner), linear(expert, inner, hidden, gain=4.0)]
    return [features, gate, bias, *layers]
