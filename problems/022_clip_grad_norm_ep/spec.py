"""Problem 022: gradient-norm clipping with expert gradients. The harness's side: sizes, inputs, tolerance, cost."""

import math

from pkb.problem import Context, Cost, GroupRef, Problem, Shape, Tolerance

NORM_TYPES = {"plain": 2.0, "integers": 1.0, "wide": 3.0, "ragged": 2.0, "edge": 2.0}


def _ep_size(world_size: int) -> int:
    """W/2, or W where that is 1 or W is odd: 2 of 2, 3 of 3, 2 of 4, 3 of 6, 4 of 8."""
    return world_size // 2 if world_size % 2 == 0 and world_size > 2 else world_size


def _groups(ctx: Context) -> tuple[int, GroupRef | None, GroupRef | None]:
    """(ep_size, ep_fsdp_group, ep_group) of this rank: rank = replica * ep_size + expert. A group of one rank is None.

    No expert parallelism at all in the integers trial, experts over all ranks in the wide one.
    """
    W = ctx.world_size
    ep_size = {"integers": 1, "wide": W}.get(ctx.variant, _ep_size(W))
    replica, expert = divmod(ctx.rank, ep_size)
    same_experts = range(expert, W, ep_size)
    other_experts = range(replica * ep_size, (replica + 1) * ep_size)
    return ep_size, *(ctx.group(g) if len(g) > 1 else None for g in (same_experts, other_experts))


def _shapes(ctx: Context, rank: int, count: int, M: int, N: int) -> list[tuple[int, ...] | None]:
    """Shapes of a rank's shards; in the ragged trial odd ones that differ by rank, a None and an empty tensor."""
    if ctx.variant != "ragged":
        return [(M, N)] * count
    odd = [(M - 1, N - 1), None, (33 + rank, 17), (1,), (0, N)]
    return [odd[i % len(odd)] for i in range(max(count, len(odd)))]


def _exactly_at_the_threshold(ctx: Context, dense_shapes: list, expert_shapes: list, ep_size: int) -> tuple[list, list]:
    """Zeros but for a dense norm of 3 on one rank and an expert norm of 4 (after scaling) on another: 5 over all ranks."""
    import torch

    dense, experts = ([torch.zeros(s, dtype=ctx.dtype, device=ctx.device) for s in ss] for ss in (dense_shapes, expert_shapes))
    first = ctx.stream("pair").integer(0, ctx.world_size)
    for rank, count, value, grad in ((first, 9, 1, dense[-1]), ((first + 1) % ctx.world_size, 16, ep_size, experts[0])):
        if ctx.rank == rank:
            places = ctx.own.permutation(grad.numel())[:count]
            grad.view(-1)[places] = (value * (2 * ctx.own.integers(0, 2, count) - 1)).to(ctx.dtype)
    return dense, experts


def make_inputs(ctx: Context) -> tuple:
    """Both lists with scales over three decades by rank and tensor; dense or expert gradients dominate by turns.

    max_norm is a random fraction of about the true norm; in the edge trial it equals the norm and nothing may be clipped.
    """
    import torch

    size, p = ctx.size, NORM_TYPES[ctx.variant]
    ep_size, ep_fsdp_group, ep_group = _groups(ctx)
    dims = ((size.dense, size.dense_M, size.dense_N), (size.expert, size.expert_M, size.expert_N))
    rest = (p, ep_size, ctx.group(range(ctx.world_size)), ep_fsdp_group, ep_group)
    if ctx.variant == "edge":
        return *_exactly_at_the_threshold(ctx, *(_shapes(ctx, ctx.rank, *d) for d in dims), ep_size), 5.0, *rest

    shared = ctx.stream("scales")
    moment = ctx.stream("moment").values(4096, dtype=torch.float64).abs().pow(p).mean().item()
    grads: list[list] = [[], []]
    power_sum = 0.0
    # equal weight on average, experts three times or a third in some trials
    expert_gain = ep_size * {"integers": 3.0, "ragged": 1 / 3}.get(ctx.variant, 1.0)
    for i, gain in enumerate((1.0, expert_gain)):
        shapes = _shapes(ctx, ctx.rank, *dims[i])
        scales = gain * 10.0 ** shared.uniform(-2, 1, ctx.world_size, len(shapes), dtype=torch.float64)
        scales[shared.integer(0, ctx.world_size)] *= 3  # one rank dominates, another one for experts
        if ctx.variant == "integers":
            scales = torch.exp2(torch.log2(scales).round())  # integers times powers of two stay exact
        for j, (scale, shape) in enumerate(zip(scales[ctx.rank].tolist(), shapes, strict=True)):
            dtype = torch.float32 if ctx.variant == "ragged" and j == 2 else ctx.dtype
            grads[i].append(None if shape is None else (ctx.own.values(*shape, dtype=torch.float32) * scale).to(dtype))
        numels = [[0 if s is None else math.prod(s) for s in _shapes(ctx, r, *dims[i])] for r in range(ctx.world_size)]
        elements = torch.tensor(numels, device=ctx.device)
        power_sum += moment * (elements * (scales / (ep_size if i else 1)).pow(p)).sum().item()
    return *grads, power_sum ** (1 / p) * shared.real(0.05, 0.4), *rest


def cost(shape: Shape) -> Cost:
    """One fp32 reduced over the world; every gradient read at least once and, as the plain trials clip, written once."""
    size, b = shape.size, shape.element_size
    dense, expert = size.dense * size.dense_M * size.dense_N, size.expert * size.expert_M * size.expert_N
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * 4,
        flops=3 * (dense + expert) + expert,
        memory_bytes=2 * (dense + expert) * b,
        footprint_bytes=(dense + expert) * b + 8 * max(size.dense_M * size.dense_N, size.expert_M * size.expert_N),
    )


PROBLEM = Problem(
    title="Global gradient-norm clipping with separate expert-parallel gradients",
    category="FSDP/ZeRO",
    source="VeOmni (FSDP2 + EP gradient clipping)",
    sizes={
        "smoke": {"dense": 3, "dense_M": 48, "dense_N": 32, "expert": 2, "expert_M": 64, "expert_N": 32},
        "default": {"dense": 1, "dense_M": 1024, "dense_N": 1024, "expert": 1, "expert_M": 1024, "expert_N": 1024},
        "production": {"dense": 435, "dense_M": 512, "dense_N": 854, "expert": 144, "expert_M": 4096, "expert_N": 6104},
    },
    make_inputs=make_inputs,
    cost=cost,
    mutates=("non_ep_grad_tensors", "ep_grad_tensors"),
    # the norm within a relative error of about 1e-5, whatever the order of summation; the gradients by the usual rule
    tolerance=(Tolerance(floor_ulps=300), Tolerance()),
    deviations=(
        "gradients have log-uniform scales by rank and tensor, and experts weigh as much as dense gradients or more; the "
        "original's norm is a constant within 0.02 %, of which experts make 3 %",
        "the scaled and clipped gradients are compared as well as the norm, and all of them are restored before every call",
        "the threshold varies by trial; in one it equals the norm exactly, so that nothing may be clipped",
        "ep_size is W/2, or W for 2 ranks and odd W (3 of 6 ranks needs rounding), 1 in one trial and W in another; a group "
        "of one rank is passed as None",
        "p is 1 or 3 in some trials; one has None entries, empty tensors, mixed dtypes and shapes that differ by rank",
    ),
)
