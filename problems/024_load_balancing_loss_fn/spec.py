"""Problem 024: router load-balancing loss. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb.draw import Draw
from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch


def _logits(ctx: Context, draw: Draw, rows: int, strength: float) -> torch.Tensor:
    """(rows, E) router logits with popular experts, and a gap below the k-th place that no rounding closes."""
    import torch

    E, k = ctx.size.E, ctx.size.k
    popularity = strength / (1 + draw.permutation(E)).to(torch.float32)  # Zipf's law in a random order
    logits = draw.randn(rows, E, dtype=torch.float32) + popularity
    if ctx.variant == "integers":
        logits = logits.round()
    chosen = logits.topk(k, dim=-1).indices
    gap = 1.0 if ctx.variant == "integers" else 0.25
    return logits.scatter_add(1, chosen, torch.full_like(logits, gap).gather(1, chosen)).to(ctx.dtype)


def _mask(ctx: Context, batch: int, length: int) -> torch.Tensor:
    """(batch, length): every sequence padded at its end by a length of its own; one single token on one rank (edge)."""
    import torch

    valid = ctx.own.integers(1, length + 1, batch, 1)
    if ctx.variant == "edge" and ctx.rank == ctx.stream("lonely").integer(0, ctx.world_size):
        valid = torch.zeros_like(valid)
        valid[0] = 1
    mask = torch.arange(length, device=ctx.device) < valid
    return mask.to({"wide": torch.float32, "ragged": torch.int64, "edge": torch.bool}[ctx.variant])


def make_inputs(ctx: Context) -> tuple:
    """(gate_logits, num_experts, top_k, attention_mask): routers skewed by a different amount on each rank.

    Plain: one tensor if L is 1, otherwise a tuple of layers, without mask. Three trials have masks of three dtypes.
    """
    batch, length, layers = ctx.size.batch, ctx.size.S, ctx.size.L
    if ctx.variant == "ragged":
        batch, length, layers = batch + 1, max(1, length - 3), max(2, layers)
    turn = (ctx.rank + ctx.stream("turn").integer(0, ctx.world_size)) % ctx.world_size
    strength = 0.5 + 5.5 * turn / (ctx.world_size - 1)
    if ctx.variant == "edge":
        strength = 20.0  # all tokens to the same experts
    gates = [_logits(ctx, ctx.own, batch * length, strength) for _ in range(layers)]
    gate_logits = gates[0] if layers == 1 else (gates if ctx.variant == "wide" else tuple(gates))
    mask = None if ctx.variant in ("plain", "integers") else _mask(ctx, batch, length)
    return gate_logits, ctx.size.E, ctx.size.k, mask


def admissible(shape: Shape) -> str | None:
    if shape.size.k >= shape.size.E:
        return f"k={shape.size.k} is not smaller than E={shape.size.E}"
    return None


def cost(shape: Shape) -> Cost:
    """All-reduce of one fp32; one pass over the logits. The reference materialises one-hot vectors (int64 and fp32)."""
    size = shape.size
    rows, E, k = size.L * size.batch * size.S, size.E, size.k
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * 4,
        flops=6 * rows * E + rows * k + 2 * k * E,
        memory_bytes=rows * E * shape.element_size,
        footprint_bytes=rows * (E * (4 * shape.element_size + 4) + 12 * k * (E + 1)),
    )


PROBLEM = Problem(
    title="MoE router auxiliary (load-balancing) loss, averaged over ranks",
    category="expert parallel",
    source="Hugging Face Transformers and VeOmni (Switch/Mixtral-type auxiliary loss)",
    sizes={
        "smoke": {"L": 3, "batch": 4, "S": 32, "E": 8, "k": 2},
        "default": {"L": 1, "batch": 4, "S": 256, "E": 8, "k": 2},
        "production": {"L": 48, "batch": 2, "S": 4096, "E": 128, "k": 8},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    # probabilities and their means are rounded to the dtype, and those roundings may cancel in the reference: 1e-3 relative
    # in bfloat16, and as much finer in a finer dtype as that is
    tolerance=Tolerance(floor_ulps=16, input_ulps=0.46),
    deviations=(
        "routers are skewed by an amount that differs by rank and trial; the original's loss is always k to three digits",
        "the k-th and next probability differ by more than any rounding, so that the routing is well defined",
        "several layers and ragged padding masks occur in some trials; the original has one layer and no mask",
        "the loss is compared at a relative 1e-3, in place of 1e-2",
    ),
)
