"""Problem 009: LayerNorm parameter gradients. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def _rows(ctx: Context) -> int:
    """Rows of this rank: uneven in the ragged trial, none on one rank in the edge trial."""
    if ctx.variant == "ragged":
        return max(1, ctx.size.B - 1 - 2 * ctx.rank)
    if ctx.variant == "edge" and ctx.rank == ctx.stream("empty rank").integer(0, ctx.world_size):
        return 0
    return ctx.size.B


def make_inputs(ctx: Context) -> tuple:
    """(X_hat, dY): true LayerNorm outputs, and gradients whose column sums are of order one and differ by column and rank."""
    import torch

    rows, cols = _rows(ctx), ctx.size.H - (3 if ctx.variant == "ragged" else 0)
    fp32 = torch.float32
    if ctx.variant == "integers":
        # a row of as many +1 as -1 is its own normalisation, and its products with small integers sum exactly
        signs = torch.ones(rows, cols, device=ctx.device)
        signs[:, : cols // 2] = -1
        order = ctx.own.uniform(0, 1, rows, cols, dtype=fp32).argsort(dim=1)
        return signs.gather(1, order).to(ctx.dtype), ctx.own.integers(-1, 2, rows, cols, dtype=ctx.dtype)

    columns = ctx.stream("columns")
    column_scale = torch.exp2(columns.uniform(-1, 1, cols, dtype=fp32))
    beta_mean = columns.choice((-1, 1)) + columns.randn(cols, dtype=fp32)
    gamma_mean = columns.choice((-1, 1)) + columns.randn(cols, dtype=fp32)

    x = ctx.own.values(rows, cols, dtype=fp32) * column_scale + 0.5 * ctx.own.randn(rows, 1, dtype=fp32)
    if ctx.variant == "edge":
        x[::5] = x[::5, :1]  # constant rows: variance 0, so eps decides and x_hat is 0
    centred = x - x.mean(1, keepdim=True)
    x_hat = centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)

    total_rows = ctx.size.B * ctx.world_size
    share = 2 * (1 + ctx.rank) / (1 + ctx.world_size)  # of the mean; grows with the rank and averages 1
    noise = ctx.own.values(rows, cols, dtype=fp32, scale=total_rows**-0.5)
    dY = column_scale * (noise + share / total_rows * (beta_mean + gamma_mean * x_hat))
    return x_hat.to(ctx.dtype), dY.to(ctx.dtype)


def cost(shape: Shape) -> Cost:
    """All-reduce of two vectors of H; one pass over both inputs. The reference also stores the products."""
    rows, cols, b = shape.size.B, shape.size.H, shape.element_size
    share = (shape.world_size - 1) / shape.world_size
    return Cost(
        sent_bytes=2 * share * 2 * cols * b,
        flops=3 * rows * cols,
        memory_bytes=2 * rows * cols * b + 2 * cols * b,
        footprint_bytes=3 * rows * cols * b + 4 * cols * b,
    )


PROBLEM = Problem(
    title="LayerNorm parameter gradients (gamma, beta) with rows split over ranks",
    category="tensor parallel",
    source="generic (Megatron-LM style sequence-parallel Transformer training; plain data parallelism)",
    sizes={
        "smoke": {"B": 96, "H": 64},
        "default": {"B": 1024, "H": 1024},
        "production": {"B": 32768, "H": 8192},
    },
    make_inputs=make_inputs,
    cost=cost,
    deviations=(
        "X_hat is a true LayerNorm output (zero mean, unit variance per row); the original's rows have L2 norm 1",
        "dY is scaled so that column sums are of order one, with column scales and a rank-dependent mean; the original's sums "
        "have std 90 in bf16 and mean 0",
        "ranks hold unequal row counts in one trial, and one rank holds none in another",
    ),
)
