"""Problem 071: causal depthwise convolution under zigzag context parallelism. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """(x, weight): x differs by rank, weight is one layer's and therefore equal on all ranks.

    ragged: odd channel count and chunk length. edge: the shortest chunk allowed, c = K - 1.
    """
    s = ctx.size
    batch, channels, chunk = s.B, s.D, s.c
    if ctx.variant == "ragged":
        batch, channels, chunk = s.B + 1, s.D - 1, max(s.K - 1, s.c - 3)
    if ctx.variant == "edge":
        chunk = s.K - 1
    x = ctx.own.values(batch, channels, 2 * chunk)
    weight = ctx.shared.values(channels, 1, s.K, scale=s.K**-0.5)
    return x, weight


def observe(before: Any, output: Any, after: Any) -> list[Any]:
    """The whole output, and on their own the positions that the exchange decides: the first K - 1 of each half."""
    import torch

    halo = before[1].shape[2] - 1
    first, second = output.chunk(2, dim=2)
    return [output, torch.cat([first[:, :, :halo], second[:, :, :halo]], dim=2)]


def admissible(shape: Shape) -> str | None:
    """A halo must fit into one neighbouring chunk."""
    s = shape.size
    if not 2 <= s.K <= s.c + 1:
        return f"the filter needs 2 <= K <= c + 1, got K={s.K}, c={s.c}; change size.K or size.c"
    return None


def cost(shape: Shape) -> Cost:
    """One halo, what an end rank sends (interior ranks send two); 2 K operations per element."""
    s, b = shape.size, shape.element_size
    elements = s.B * s.D * 2 * s.c
    return Cost(
        sent_bytes=s.B * s.D * (s.K - 1) * b,
        flops=2 * elements * s.K,
        memory_bytes=2 * elements * b + s.D * s.K * b,
        footprint_bytes=5 * elements * b + 4 * s.B * s.D * s.K * b,
    )


PROBLEM = Problem(
    title="Causal depthwise 1-D convolution on a zigzag sequence-sharded tensor with exchange of left halos",
    category="context parallel",
    source="Evo 2 / Savanna (Hyena short convolution under zigzag context parallelism)",
    sizes={
        "smoke": {"B": 2, "D": 16, "K": 4, "c": 24},
        "default": {"B": 1, "D": 1024, "K": 7, "c": 1024},
        "production": {"B": 1, "D": 4096, "K": 7, "c": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    observe=observe,
    deviations=(
        "weight is the same on all ranks and scaled by 1/sqrt(K); the original draws one per rank",
        "the positions next to chunk borders are also compared on their own: they are under one percent of the output",
    ),
    tags=("point-to-point",),
)
