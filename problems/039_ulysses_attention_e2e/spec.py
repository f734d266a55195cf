"""Problem 039: Ulysses attention layer. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Rank-dependent hidden states, replicated weights; causal in the integers, ragged and edge trials.

    ragged: odd batch, length and hidden size, so that the heads do not add up to the hidden size. edge: one row per rank.
    """
    import torch

    s, world_size = ctx.size, ctx.world_size
    heads = s.h if ctx.variant == "plain" or s.h >= 2 * world_size else 4 * world_size
    batch, length, hidden = (s.B + 1, s.S_l - 1, s.H - 3) if ctx.variant == "ragged" else (s.B, s.S_l, s.H)
    if ctx.variant == "edge":
        length = 1
    x = ctx.own.values(batch, max(1, length), hidden)
    if ctx.variant == "integers":
        x = x / 4  # quarters are as exact as integers, and keep the scores of order one
    width = heads * s.d
    # Queries of twice the unit variance make scores of standard deviation 2: attention that is neither flat nor one-hot.
    gain = torch.tensor([2.0, 1.0, 1.0], device=ctx.device).repeat_interleave(width).unsqueeze(1)
    w_qkv = (ctx.shared.randn(3 * width, hidden, scale=hidden**-0.5, dtype=torch.float32) * gain).to(ctx.dtype)
    w_o = ctx.shared.randn(hidden, width, scale=width**-0.5)
    return x, w_qkv, w_o, None, heads, ctx.variant in ("integers", "ragged", "edge")


def admissible(shape: Shape) -> str | None:
    if shape.size.h % shape.world_size:
        return f"h={shape.size.h} heads cannot be shared equally by {shape.world_size} ranks; set size.h to a multiple"
    return None


def cost(shape: Shape) -> Cost:
    """All-to-all of q, k, v and of the result; two projections; attention of h / W heads over the whole sequence.

    On two ranks it takes least to gather the hidden states and to project keys and values of all positions on every rank.
    """
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    width, length, local = s.h * s.d, s.S_l * world_size, s.h // world_size
    rows = s.B * s.S_l
    part = rows * width * b
    scores = s.B * local * length**2 * b
    return Cost(
        sent_bytes=4 * part * (world_size - 1) / world_size,
        least_sent_bytes=(world_size - 1) * min(4 * part / world_size, rows * s.H * b),
        flops=8 * rows * s.H * width + 4 * s.B * local * length**2 * s.d,
        memory_bytes=(rows * s.H + 4 * width * s.H) * b + rows * s.H * b + 8 * part,
        # Weights, activations and their exchange buffers, and up to four matrices of scores and the mask.
        footprint_bytes=4 * width * s.H * b + 2 * rows * s.H * b + 16 * part + 4 * scores + length**2,
    )


PROBLEM = Problem(
    title="Ulysses attention layer: QKV projection, exchange, attention, exchange back, output projection",
    category="context parallel",
    source="DeepSpeed-Ulysses as implemented in VeOmni",
    sizes={
        "smoke": {"B": 2, "S_l": 8, "h": 12, "d": 16, "H": 192},
        "default": {"B": 16, "S_l": 2, "h": 8, "d": 64, "H": 512},
        "production": {"B": 1, "S_l": 2048, "h": 32, "d": 128, "H": 4096},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "attention runs over the sequence, with a causal mask over the sequence; the original's runs over the local heads of "
        "each position, so that no rank needs another's data",
        "weights are replicated and scaled by 1/sqrt(fan-in); the original's differ by rank and saturate the softmax",
        "three trials are causal; trials other than the first have several heads per rank; one has odd sizes and heads that do "
        "not add up to the hidden size, one a single row per rank",
    ),
    tags=("all-to-all",),
)
