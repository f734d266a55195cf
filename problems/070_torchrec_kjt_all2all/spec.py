"""Problem 070: all-to-all of keyed jagged features. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

NUM_IDS = 1_000_000
LONGEST_BAG = 200


def draw_key_splits(ctx: Context) -> list[int]:
    """Keys per rank: moderately uneven, or with a rank that owns none in the edge trial."""
    keys, world_size = ctx.size.F, ctx.world_size
    if ctx.variant == "edge":
        splits = ctx.shared.split(keys, world_size - 1)
        splits.insert(ctx.shared.integer(0, world_size), 0)
        return splits
    return ctx.shared.split(keys, world_size, max(1, 3 * keys // (4 * world_size)))


def draw_lengths(ctx: Context, strides: list[int]) -> Any:
    """Bag lengths: two fifths empty, the rest log-normal with a heavy tail; mean about mean_length."""
    import torch

    bags = sum(strides)
    tail = torch.exp(ctx.own.randn(bags, dtype=torch.float32) - 0.5) * (ctx.size.mean_length / 0.6)
    lengths = tail.round().clamp(1, LONGEST_BAG).long()
    lengths = torch.where(ctx.own.uniform(0, 1, bags, dtype=torch.float32) < 0.4, 0, lengths)
    if ctx.variant != "plain" and ctx.rank == ctx.world_size - 1:  # one key is empty on one rank
        key = ctx.own.integer(0, len(strides))
        lengths[sum(strides[:key]) : sum(strides[: key + 1])] = 0
    return lengths


def make_inputs(ctx: Context) -> tuple:
    """(lengths, values, key_splits, batch_size, pg, weights, stride_per_key, stagger); the trial sets the mode.

    plain: equal batches. integers: unequal batches and weights. wide: a stride per key and weights. ragged: unequal
    batches, two nodes. edge: a stride per key (0 among them), two nodes, a rank without keys.
    """
    import torch

    batch, keys = ctx.size.B, ctx.size.F
    if ctx.variant in ("integers", "ragged"):
        batch = ctx.own.integer(max(1, batch // 2), batch + 1)
    per_key = None
    if ctx.variant in ("wide", "edge"):
        low = 0 if ctx.variant == "edge" else max(1, batch // 2)
        per_key = ctx.own.integers(low, batch + 1, keys).tolist()
    lengths = draw_lengths(ctx, per_key or [batch] * keys)
    num_values = int(lengths.sum())
    values = ctx.own.integers(0, NUM_IDS, num_values)
    weights = ctx.own.randn(num_values, dtype=torch.float32) if ctx.variant in ("integers", "wide") else None
    stagger = 2 if ctx.variant in ("ragged", "edge") and ctx.world_size % 2 == 0 else 1
    return lengths, values, draw_key_splits(ctx), batch, None, weights, per_key, stagger


def admissible(shape: Shape) -> str | None:
    """Every rank can own a key."""
    if shape.world_size > shape.size.F:
        return f"F={shape.size.F} keys are fewer than the ranks; raise size.F to {shape.world_size} or more"
    return None


def cost(shape: Shape) -> Cost:
    """8 bytes per id and 4 per bag length leave this rank; no arithmetic."""
    bags = shape.size.F * shape.size.B
    values = bags * shape.size.mean_length
    leaving = (shape.world_size - 1) / shape.world_size
    held = 8 * values + 8 * bags
    return Cost(sent_bytes=leaving * (8 * values + 4 * bags), flops=0, memory_bytes=2 * held, footprint_bytes=5 * held)


PROBLEM = Problem(
    title="Redistribute a keyed jagged tensor (batch-sharded sparse features) to the owners of the features",
    category="other",
    source="TorchRec (KeyedJaggedTensor all-to-all, splits and tensors phases)",
    sizes={
        "smoke": {"F": 6, "B": 12, "mean_length": 3},
        "default": {"F": 15, "B": 512, "mean_length": 12},
        "production": {"F": 208, "B": 8192, "mean_length": 20},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    oracle="reference",
    deviations=(
        "the trials use all three modes (equal batches, unequal batches, a stride per key), weights and a stagger of 2; the "
        "original only equal batches without weights",
        "bag lengths are skewed, two fifths of them 0, with a key that is empty on a rank; the original's lie in 5..20",
        "key_splits are drawn by trial and one trial has a rank without keys; the original's follow a fixed pattern",
    ),
    tags=("all-to-all",),
)
