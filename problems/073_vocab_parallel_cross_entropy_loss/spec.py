"""Problem 073: vocabulary-parallel cross-entropy. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape


def draw_targets(ctx: Context, batch: int, length: int, columns: int) -> Any:
    """(B, S) ids: half of them on one or two favoured shards, one in eight the first or last id of a shard."""
    import torch

    draw = ctx.stream("targets")
    shape = (batch, length)
    anywhere = draw.integers(0, ctx.world_size, *shape)
    favoured = draw.integers(0, ctx.world_size, 2)[draw.integers(0, 2, *shape)]
    shard = torch.where(draw.integers(0, 2, *shape) == 0, anywhere, favoured)
    column = draw.integers(0, columns, *shape)
    kind = draw.integers(0, 16, *shape)
    column = torch.where(kind == 0, 0, torch.where(kind == 1, columns - 1, column))
    return shard * columns + column


def make_inputs(ctx: Context) -> tuple:
    """(vocab_parallel_logits, target).

    Logits are spread by 2.5 around an offset of the token beyond the range of exp, plus one of the (rank, token), so that
    leaving out or localising the maximum overflows or mixes scales. A third of the targets is raised towards the maximum.
    edge: whole rows equal, and a shard far below the others.
    """
    import torch

    s = ctx.size
    columns = s.V // ctx.world_size
    batch, length = s.B, s.S
    if ctx.variant == "ragged":
        columns, length = columns - 1, length - 3
    shape = (batch, length)
    target = draw_targets(ctx, batch, length, columns)
    logits = ctx.own.randn(*shape, columns, scale=2.5, dtype=torch.float32)
    if ctx.variant == "integers":
        logits = logits.round()

    owned = (target // columns == ctx.rank)[..., None]
    raise_by = ctx.shared.uniform(0.0, 12.0, *shape, 1, dtype=torch.float32)
    raised = owned & (ctx.shared.integers(0, 3, *shape, 1) == 0)
    at_target = torch.zeros_like(logits).scatter_(-1, (target % columns)[..., None], 1.0)
    logits += at_target * torch.where(raised, raise_by.round(), 0.0)

    # bfloat16 keeps half steps up to 128; wider dtypes can afford larger offsets.
    low, high = (96, 120) if ctx.dtype == torch.bfloat16 else (200, 400)
    sign = 2 * ctx.shared.integers(0, 2, *shape, 1) - 1
    offset = ctx.shared.integers(low, high, *shape, 1) * sign
    reach = 30 if ctx.variant == "wide" else 4
    own_offset = ctx.own.integers(-reach, reach + 1, *shape, 1)
    if ctx.variant == "edge":
        logits[:, ::2] = 0.0
        own_offset = -1000 * (ctx.rank == 0) * ctx.shared.integers(0, 2, *shape, 1)
    return (logits + offset + own_offset).to(ctx.dtype), target


def admissible(shape: Shape) -> str | None:
    """Every id has an owner."""
    if shape.size.V % shape.world_size:
        return f"V={shape.size.V} ids do not divide over the ranks; make size.V a multiple of {shape.world_size}"
    return None


def cost(shape: Shape) -> Cost:
    """All-reduces of three numbers per token; the overwrite is counted, for which the maximum itself is needed everywhere.

    At least every rank's maximum and sum of exponentials per token, and the target's logit from its owner, must leave it; about so
    much suffices if the switch reduces and multicasts.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    tokens = s.B * s.S
    local = tokens * s.V / world_size
    return Cost(
        sent_bytes=2 * (world_size - 1) / world_size * tokens * 3 * b,
        least_sent_bytes=tokens * b * (2 + 1 / world_size),
        flops=5 * local,
        memory_bytes=2 * local * b + tokens * (8 + b),
        footprint_bytes=2 * local * b + tokens * (40 + 6 * b),
    )


PROBLEM = Problem(
    title="Cross-entropy per token of logits that are split along the vocabulary",
    category="vocab parallel",
    source="Megatron-LM (tensor-parallel vocabulary cross-entropy)",
    sizes={
        "smoke": {"B": 2, "S": 64, "V": 512},
        "default": {"B": 8, "S": 1024, "V": 512},
        "production": {"B": 4, "S": 4096, "V": 128256},
    },
    make_inputs=make_inputs,
    cost=cost,
    mutates=("vocab_parallel_logits",),
    admissible=admissible,
    deviations=(
        "logits carry large offsets by token and by rank, so that the maximum matters; the original's are standard normal",
        "targets are random, skewed to some shards and partly near the maximum; the original's are an arithmetic progression",
        "the overwrite of the logits is part of the contract and compared; W must divide V",
    ),
    tags=("all-reduce",),
)
