"""Problem 048: SwiGLU layer on an FSDP x TP grid. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Rows of the FSDP rank, and the rank's blocks of the weights; outputs are of order one.

    The plain trial has the grid of the size, the others go through all grids of the world size: at least one has several
    tensor-parallel ranks and one several FSDP ranks. ragged: odd blocks and rows. edge: one row.
    """
    s, world_size = ctx.size, ctx.world_size
    n_tp = s.n_tp
    if ctx.variant != "plain":
        divisors = [t for t in range(1, world_size + 1) if world_size % t == 0]
        n_tp = divisors[ctx.trial % len(divisors)]
    n_fsdp = world_size // n_tp
    batch, d_part, f_part = s.B, s.D // n_fsdp, s.F // n_tp
    if ctx.variant == "ragged":
        batch, d_part, f_part = batch - 1, d_part - 1 + d_part % 2, f_part - 1 + f_part % 2
    if ctx.variant == "edge":
        batch = 1
    width, inner = d_part * n_fsdp, f_part * n_tp
    x = ctx.stream(f"rows of FSDP rank {ctx.rank // n_tp}").values(batch, width)
    if ctx.variant == "integers":
        x = x / 4  # quarters are as exact as integers, and keep the activations of order one
    w1 = ctx.own.randn(d_part, f_part, scale=width**-0.5)
    w2 = ctx.own.randn(d_part, f_part, scale=width**-0.5)
    # silu(gate) * up has an RMS of about 0.6.
    w3 = ctx.own.randn(f_part, d_part, scale=1.7 * inner**-0.5)
    return x, w1, w2, w3, n_tp, n_fsdp


def admissible(shape: Shape) -> str | None:
    s, world_size = shape.size, shape.world_size
    if s.n_tp < 1 or world_size % s.n_tp:
        return f"n_tp={s.n_tp} does not divide {world_size} ranks; set size.n_tp to a divisor"
    if s.D % world_size or s.F % world_size:
        return f"D={s.D} and F={s.F} must be multiples of {world_size}, so that every grid can be formed"
    return None


def cost(shape: Shape) -> Cost:
    """All-gather of three weights over FSDP, three products with F / n_tp, all-reduce of the output over TP. At least its
    addends must leave every rank; about so much suffices if the switch reduces and multicasts.
    """
    s, b, t = shape.size, shape.element_size, shape.size.n_tp
    f = shape.world_size // t
    weights = 3 * s.D * (s.F // t) * b
    rows = s.B * s.D * b
    inner = s.B * (s.F // t) * b
    return Cost(
        sent_bytes=(f - 1) / f * weights + 2 * (t - 1) / t * rows,
        least_sent_bytes=(f - 1) / f * weights + (rows if t > 1 else 0),
        flops=6 * s.B * s.D * s.F / t,
        memory_bytes=2 * rows + weights,
        # Shards, gathered weights and their join; rows, inner activations, output.
        footprint_bytes=weights / f + 2 * weights + 3 * rows + 4 * inner,
    )


PROBLEM = Problem(
    title="SwiGLU feed-forward layer with weights sharded over an FSDP x TP grid",
    category="FSDP/ZeRO",
    source="generic (PyTorch 2-D parallelism, FSDP and tensor parallel, Llama feed-forward)",
    sizes={
        "smoke": {"B": 32, "D": 32, "F": 64, "n_tp": 2},
        "default": {"B": 512, "D": 256, "F": 1024, "n_tp": 2},
        "production": {"B": 4096, "D": 8192, "F": 28672, "n_tp": 2},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "weights are scaled by 1/sqrt(fan-in), so that outputs are of order one instead of thousands",
        "trials go through all grids of the world size, from pure FSDP to pure tensor parallelism; B is per FSDP rank",
        "process groups are created on the first call and kept; the original creates them in every call",
        "two ranks form the grid (2, 1) at nominal size; the original's (1, 2) has no all-reduce",
    ),
    tags=("all-gather", "all-reduce", "tensor parallel"),
)
