"""Problem 081: gather masks and suppress overlapping objects. Sizes, inputs, tolerance, cost."""

import itertools
from typing import Any

from pkb.draw import Draw
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def num_objects(ctx: Context) -> list[int]:
    """Objects of every rank, ``objects`` on average; a rank has none in the wide and ragged trials.

    edge: one object in all, or none in every second edge trial.
    """
    mean, world_size = ctx.size.objects, ctx.world_size
    draw = ctx.stream("counts")
    if ctx.variant == "edge":
        counts = [0] * world_size
        counts[draw.integer(0, world_size)] = 1 - ctx.trial // 5 % 2
        return counts
    if ctx.variant in ("wide", "ragged"):
        counts = draw.split(mean * world_size, world_size - 1, 1)
        counts.insert(draw.integer(0, world_size), 0)
        return counts
    return draw.split(mean * world_size, world_size, max(1, mean // 2))


def box(draw: Draw, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, rows, columns) of a random box of a quarter to three quarters of the image."""
    rows, columns = (draw.integer(n // 4, 3 * n // 4) for n in (height, width))
    return draw.integer(0, height - rows), draw.integer(0, width - columns), rows, columns


def draw_boxes(draw: Draw, count: int, height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Boxes of ``count`` objects: first an exact pair, then chains of near duplicates (IoU about 0.75 to 0.95), single
    objects, and an empty one."""
    first = box(draw, height, width)
    boxes = [first, first]
    while len(boxes) < count:
        top, left, rows, columns = box(draw, height, width)
        for _ in range(draw.integer(1, 5)):
            boxes.append((top, left, rows, columns))
            left += max(1, round(columns * draw.real(0.03, 0.14)))  # the border of the image cuts it, if it gets there
        if draw.integer(0, 3) == 0:
            boxes.append((0, 0, 0, 0))
    return boxes[:count]


def place_objects(ctx: Context, counts: list[int]) -> list[int]:
    """A random global index for every object; the first two, an exact pair, lie on different ranks if two have objects."""
    order = ctx.shared.permutation(sum(counts)).tolist()
    owner = [rank for rank, count in enumerate(counts) for _ in range(count)]
    for i in range(2, len(order)):
        if owner[order[0]] != owner[order[1]]:
            break
        order[1], order[i] = order[i], order[1]
    return order


def threshold_between(iou: Any, low: float, high: float) -> float:
    """The middle of the widest gap between IoUs in [low, high], so that rounding cannot decide a pair."""
    inside = iou[(iou > low) & (iou < high)].tolist()
    edges = sorted([low, *inside, high])
    gap, start = max((b - a, a) for a, b in itertools.pairwise(edges))
    return start + gap / 2


def make_inputs(ctx: Context) -> tuple:
    """(low_res_masks_local, obj_scores_local, num_obj_per_gpu, last_occluded, iou_threshold, reverse)."""
    import torch

    s = ctx.size
    counts = num_objects(ctx)
    total = sum(counts)
    order = place_objects(ctx, counts)
    boxes = draw_boxes(ctx.shared, total, s.H, s.Wd)

    inside = torch.zeros(total, s.H, s.Wd, dtype=torch.bool, device=ctx.device)
    for place, (top, left, rows, columns) in zip(order, boxes, strict=True):
        inside[place, top : top + rows, left : left + columns] = True

    last_occluded = ctx.shared.integers(-1, 31, total)
    last_occluded[ctx.shared.integers(0, 3, total) == 0] = ctx.shared.integer(-1, 31)  # ties
    if total >= 2:  # the exact pair always decides something
        earlier = ctx.shared.integer(0, 15)
        last_occluded[order[0]], last_occluded[order[1]] = earlier, earlier + ctx.shared.integer(1, 15)

    pixels = inside.flatten(1).double()
    intersection = pixels @ pixels.T
    union = pixels.sum(1)[:, None] + pixels.sum(1)[None] - intersection
    middle = 0.7 if ctx.variant == "plain" else ctx.shared.real(0.55, 0.85)
    threshold = threshold_between((intersection / union.clamp(min=1)).triu(1), middle - 0.04, middle + 0.04)

    start = sum(counts[: ctx.rank])
    mine = inside[start : start + counts[ctx.rank]]
    size = ctx.own.values(*mine.shape, dtype=torch.float32).abs() + 0.25
    masks = torch.where(mine, size, -size).to(ctx.dtype)
    scores = ctx.own.values(counts[ctx.rank], *((1,) if ctx.variant == "ragged" else ()), scale=3.0)
    return masks, scores, counts, last_occluded, threshold, ctx.variant in ("integers", "wide")


def admissible(shape: Shape) -> str | None:
    """Boxes need some pixels."""
    s = shape.size
    if s.H < 16 or s.Wd < 16 or s.objects < 1:
        return "masks need H and Wd of at least 16 and objects of at least 1; change size.H, size.Wd or size.objects"
    return None


def cost(shape: Shape) -> Cost:
    """Logits of the own objects to every peer in the dtype they have; one operation per pixel and pair on packed words."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    total = s.objects * world_size
    pixels = s.H * s.Wd
    return Cost(
        sent_bytes=(world_size - 1) * s.objects * (pixels + 1) * b,
        flops=total * total * pixels / 64,
        memory_bytes=s.objects * pixels * b + 4 * total * pixels,
        footprint_bytes=4 * total * pixels * 5 + s.objects * pixels * (b + 8) + 40 * total * total,
    )


PROBLEM = Problem(
    title="Gather object masks from all ranks and suppress overlapping objects by mask IoU and occlusion history",
    category="other",
    source="SAM 3 (multi-GPU video tracking)",
    sizes={
        "smoke": {"H": 32, "Wd": 32, "objects": 2},
        "default": {"H": 256, "Wd": 256, "objects": 2},
        "production": {"H": 288, "Wd": 288, "objects": 32},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    tolerance=Tolerance(exact=True),
    oracle="reference",
    deviations=(
        "objects are boxes, many of them near duplicates on other ranks, with chains, exact copies and empty masks; no pair of "
        "the original's ever reaches the threshold, so that its suppression can be left out",
        "the threshold varies by trial and keeps clear of every pair's IoU; reverse, ranks without objects, and no or one "
        "object in all occur",
        "last_occluded and scores are drawn by trial; the original's are fixed patterns",
        "objects are given as a mean number per rank, their split is drawn by trial",
    ),
    tags=("all-gather",),
)
