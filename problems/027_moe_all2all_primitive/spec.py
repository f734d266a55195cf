"""Problem 027: row-wise variable all-to-all. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.draw import Draw
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def _uneven(shared: Draw, total: int, parts: int) -> list[int]:
    """Counts between half of and one and a half times the mean, about, that add up to ``total``."""
    mean = total // parts
    counts = shared.split(total - parts * (mean // 2), parts)
    return [c + mean // 2 for c in counts]


def _rows(ctx: Context) -> list[list[int]]:
    """[source][destination] -> rows, equal on all ranks."""
    W, T, shared = ctx.world_size, ctx.size.T, ctx.stream("rows")
    if ctx.variant == "integers":
        return [[max(1, T // W)] * W for _ in range(W)]  # equal blocks, told by None
    if ctx.variant == "edge":
        # everything goes to one rank, which itself has nothing to send
        hot = shared.integer(0, W)
        return [[T * (destination == hot != source) for destination in range(W)] for source in range(W)]
    if ctx.variant == "plain":
        return [_uneven(shared, T, W) for _ in range(W)]
    totals = shared.split(W * T, W, least=1)  # as many rows in all, but not per rank
    rows = [shared.split(total, W) for total in totals]
    rows[shared.integer(0, W)][shared.integer(0, W)] = 0
    return rows


def make_inputs(ctx: Context) -> tuple:
    """(local_tensor, input_split_sizes, output_split_sizes, group), row r and column r of one matrix of row counts."""
    rows, width = _rows(ctx), ctx.size.H
    sent, received = rows[ctx.rank], [row[ctx.rank] for row in rows]
    group = None if ctx.variant in ("plain", "edge") else ctx.group(range(ctx.world_size))
    if ctx.variant == "ragged":
        width = max(1, width - 3)
    if ctx.variant == "integers":
        return ctx.own.values(sum(sent), width), None, None, group
    if ctx.variant == "wide":
        return ctx.own.values(sum(sent), 2 * width)[:, :width], sent, received, group  # not contiguous
    return ctx.own.values(sum(sent), width), sent, received, group


def cost(shape: Shape) -> Cost:
    """All but a W-th of the rows cross, on average over the ranks."""
    nbytes = shape.size.T * shape.size.H * shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(sent_bytes=share * nbytes, flops=0, memory_bytes=2 * nbytes, footprint_bytes=3 * nbytes)


PROBLEM = Problem(
    title="Row-wise variable all-to-all of a 2-D tensor",
    category="expert parallel",
    source="VeOmni / Megatron-LM MoE token exchange",
    sizes={
        "smoke": {"T": 96, "H": 64},
        "default": {"T": 1024, "H": 1024},
        "production": {"T": 65536, "H": 4096},
    },
    make_inputs=make_inputs,
    cost=cost,
    tolerance=Tolerance(exact=True),
    deviations=(
        "splits are uneven, differ by trial and are consistent between ranks; the original's are all equal",
        "ranks hold different numbers of rows in some trials, zero blocks occur, and in one trial all rows go to one rank",
        "the splits are None in one trial and the input is not contiguous in another",
        "rows are compared bit for bit",
    ),
)
