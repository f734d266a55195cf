"""Problem 021: gradient-norm clipping over one sharding group. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch

NORM_TYPES = {"plain": 2.0, "integers": 1.0, "wide": 3.0, "ragged": 2.0, "edge": 2.0}


def _shapes(ctx: Context, rank: int) -> list[tuple[int, ...] | None]:
    """Shapes of a rank's shards; in the ragged trial odd ones that differ by rank, a None and an empty tensor."""
    M, N, count = ctx.size.M, ctx.size.N, ctx.size.tensors
    if ctx.variant != "ragged":
        return [(M, N)] * count
    odd = [(M - 1, N - 1), (N,), None, (33 + rank, 17), (1,), (0, N)]
    return [odd[i % len(odd)] for i in range(max(count, len(odd)))]


def _exactly_at_the_threshold(ctx: Context) -> list[torch.Tensor]:
    """Zeros but for 9 entries of +-1 on one rank and 16 on another: norms 3 and 4, hence exactly 5 over all ranks."""
    import torch

    grads = [torch.zeros(s, dtype=ctx.dtype, device=ctx.device) for s in _shapes(ctx, ctx.rank)]
    first = ctx.stream("pair").integer(0, ctx.world_size)
    for rank, count, grad in ((first, 9, grads[0]), ((first + 1) % ctx.world_size, 16, grads[-1])):
        if ctx.rank == rank:
            places = ctx.own.permutation(grad.numel())[:count]
            grad.view(-1)[places] = (2 * ctx.own.integers(0, 2, count) - 1).to(ctx.dtype)
    return grads


def make_inputs(ctx: Context) -> tuple:
    """(grad_tensors, max_norm, norm_type, fsdp_group): scales over three decades by rank and tensor, one rank dominating.

    max_norm is a random fraction of about the true norm, so that the factor is not a constant; in the edge trial it equals
    the norm and nothing may change.
    """
    import torch

    p, group = NORM_TYPES[ctx.variant], ctx.group(range(ctx.world_size))
    if ctx.variant == "edge":
        return _exactly_at_the_threshold(ctx), 5.0, p, group
    shapes = _shapes(ctx, ctx.rank)
    shared = ctx.stream("scales")
    scales = 10.0 ** shared.uniform(-2, 1, ctx.world_size, len(shapes), dtype=torch.float64)
    scales[shared.integer(0, ctx.world_size)] *= 3
    if ctx.variant == "integers":
        scales = torch.exp2(torch.log2(scales).round())  # integers times powers of two stay exact
    grads = []
    for i, (scale, shape) in enumerate(zip(scales[ctx.rank].tolist(), shapes, strict=True)):
        dtype = torch.float32 if ctx.variant == "ragged" and i == 3 else ctx.dtype
        grads.append(None if shape is None else (ctx.own.values(*shape, dtype=torch.float32) * scale).to(dtype))

    # about the norm over all ranks
    moment = ctx.stream("moment").values(4096, dtype=torch.float64).abs().pow(p).mean().item()
    elements = [[0 if s is None else math.prod(s) for s in _shapes(ctx, rank)] for rank in range(ctx.world_size)]
    expected = (moment * (torch.tensor(elements, device=ctx.device) * scales.pow(p)).sum().item()) ** (1 / p)
    return grads, expected * shared.real(0.05, 0.4), p, group


def cost(shape: Shape) -> Cost:
    """All-reduce of one fp32; every gradient is read at least once and, as the plain trials clip, written once."""
    n = shape.size.tensors * shape.size.M * shape.size.N
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * 4,
        flops=3 * n,
        memory_bytes=2 * n * shape.element_size,
        footprint_bytes=n * shape.element_size + 8 * shape.size.M * shape.size.N,
    )


PROBLEM = Problem(
    title="Global gradient-norm clipping of sharded gradients (one sharding group)",
    category="FSDP/ZeRO",
    source="VeOmni (FSDP2 gradient clipping without expert parallelism)",
    sizes={
        "smoke": {"tensors": 5, "M": 64, "N": 48},
        "default": {"tensors": 3, "M": 1024, "N": 1024},
        "production": {"tensors": 291, "M": 1024, "N": 3360},
    },
    make_inputs=make_inputs,
    cost=cost,
    mutates=("grad_tensors",),
    # the norm within a relative error of about 1e-5, whatever the order of summation; the gradients by the usual rule
    tolerance=(Tolerance(floor_ulps=300), Tolerance()),
    deviations=(
        "gradients have log-uniform scales by rank and tensor, one rank dominating; the original's norm is a constant within "
        "0.01 %",
        "the clipped gradients are compared as well as the norm, and all of them are restored before every call",
        "the threshold varies by trial; in one it equals the norm exactly, so that nothing may be clipped",
        "p is 1 or 3 in some trials; one has None entries, an empty tensor, mixed dtypes and shapes that differ by rank",
    ),
)
