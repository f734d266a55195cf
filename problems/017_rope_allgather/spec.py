"""Problem 017: rotary embedding + all-gather. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape

if TYPE_CHECKING:
    import torch


def _table(ctx: Context, batch: int, length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (B, S, D): true angles at global positions; quarter turns (integers) or arbitrary numbers (wide)."""
    import torch

    if ctx.variant == "wide":
        return ctx.own.randn(batch, length, width), ctx.own.randn(batch, length, width)
    if ctx.variant == "integers":
        turns = ctx.own.integers(0, 4, batch, length, width)
        quarter = torch.tensor([1.0, 0.0, -1.0, 0.0], device=ctx.device)
        return quarter[turns].to(ctx.dtype), quarter[(turns + 3) % 4].to(ctx.dtype)
    # every sequence of the batch starts somewhere in its document, the same on all ranks
    start = ctx.stream("start").integers(1, 4096, batch, 1)
    position = start + ctx.rank * length + torch.arange(length, device=ctx.device)
    frequency = 10000.0 ** (-torch.arange(width // 2, device=ctx.device, dtype=torch.float64) * 2 / width)
    angle = position.unsqueeze(-1) * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(ctx.dtype), angle.sin().to(ctx.dtype)


def make_inputs(ctx: Context) -> tuple:
    """(q_local, k_local, cos_local, sin_local); fewer key than query heads in all trials but the plain one."""
    size = ctx.size
    B, S, hq, hk, D = size.B, size.T // ctx.world_size, size.hq, size.hk, size.D
    if ctx.variant != "plain":
        hk = max(1, hk // 2)
    if ctx.variant == "ragged":
        B, S, hq, D = B + 1, S + 1, hq + 1, D - 2
    if ctx.variant == "edge":
        B, S, hk = 1, 1, 1
    cos, sin = _table(ctx, B, S, D)
    return ctx.own.values(B, S, hq, D), ctx.own.values(B, S, hk, D), cos, sin


def admissible(shape: Shape) -> str | None:
    if shape.world_size > shape.size.T:
        return f"T={shape.size.T} positions are fewer than the ranks"
    if shape.size.D % 2 or shape.size.D < 4:
        return f"D={shape.size.D} is not an even number of at least 4"
    return None


def cost(shape: Shape) -> Cost:
    """All-gather of B S h D elements of q and of k per rank; two products and a sum per element."""
    size, W, b = shape.size, shape.world_size, shape.element_size
    S = size.T // W
    elements = size.B * S * (size.hq + size.hk) * size.D
    largest = size.B * S * max(size.hq, size.hk) * size.D
    table = 2 * size.B * S * size.D
    return Cost(
        sent_bytes=(W - 1) * elements * b,
        flops=3 * elements,
        memory_bytes=((1 + W) * elements + table) * b,
        footprint_bytes=((2 + W) * elements + (2 + W) * largest + table) * b,
    )


PROBLEM = Problem(
    title="Rotary embedding of local query/key sequence chunks, then all-gather along the sequence",
    category="sequence parallel",
    source="Hugging Face Transformers (Llama-style rotary embedding), in a sequence-sharded setting",
    sizes={
        "smoke": {"B": 2, "T": 16, "hq": 4, "hk": 4, "D": 16},
        "default": {"B": 16, "T": 16, "hq": 8, "hk": 8, "D": 64},
        "production": {"B": 1, "T": 65536, "hq": 32, "hk": 32, "D": 128},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "cos and sin are true angles at global positions, halves repeated; one trial has arbitrary tables, as all of the "
        "original's are",
        "keys have fewer heads than queries in all trials but the plain one",
        "the number of ranks need not divide the number of heads",
    ),
)
