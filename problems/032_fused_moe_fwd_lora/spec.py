"""Problem 032: MoE forward with LoRA. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.inputs.dispatch import odds_of, tokens_by_rank
from pkb.inputs.routing import linear, routed_tokens
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Rank-dependent tokens and MLP, a replicated and skewed router; tokens in a 3-D tensor in the ragged trial.

    The factors that all experts share (A of gate and up, B of down) are replicated, the others differ by rank. A branch adds
    about a third of what its base layer yields.
    """
    s = ctx.size
    ragged = ctx.variant == "ragged"
    hidden, inner, rk = (s.H - 1, s.I - 3, s.rk - 1) if ragged else (s.H, s.I, s.rk)
    num_experts = s.E if ctx.variant == "plain" else max(s.E, s.k * ctx.world_size)
    # Integers in [-8, 8] have an RMS of about 5.
    scale = 0.25 if ctx.variant == "integers" else 1.0
    weight = ctx.shared.randn(num_experts, hidden, scale=scale / hidden**0.5)
    bias = None if ctx.variant == "integers" else ctx.shared.randn(num_experts, scale=0.5)
    odds = odds_of(ctx, num_experts, s.k)
    tokens = routed_tokens(ctx.own, tokens_by_rank(ctx, s.T)[ctx.rank], s.k, odds, weight, bias)
    gate = linear(ctx.own, hidden, inner, scale)
    up = linear(ctx.own, hidden, inner, scale)
    # silu(gate) * up has an RMS of about 0.6.
    down = linear(ctx.own, inner, hidden, 1.7)
    gate_a = ctx.shared.randn(rk, hidden, scale=scale / hidden**0.5)
    gate_b = ctx.own.randn(inner, rk, scale=0.35 / rk**0.5)
    up_a = ctx.shared.randn(rk, hidden, scale=scale / hidden**0.5)
    up_b = ctx.own.randn(inner, rk, scale=0.35 / rk**0.5)
    down_a = ctx.own.randn(rk, inner, scale=1.7 / inner**0.5)
    down_b = ctx.shared.randn(hidden, rk, scale=0.35 / rk**0.5)
    if ragged:
        tokens = tokens.view(-1, 1 + (len(tokens) + 1) % 2, hidden)
    factors = (gate_a, gate_b, up_a, up_b, down_a, down_b)
    return tokens, weight, bias, gate, up, down, *factors, num_experts, s.k, None


def admissible(shape: Shape) -> str | None:
    if shape.size.E % shape.world_size:
        return f"E={shape.size.E} experts cannot be shared equally by {shape.world_size} ranks; set size.E to a multiple"
    if shape.size.E > shape.size.H - 1:
        return f"E={shape.size.E} experts need a hidden size of more than that to be told apart; set size.H above size.E"
    if shape.size.k > shape.size.E:
        return f"a token cannot choose k={shape.size.k} distinct experts out of E={shape.size.E}"
    return None


def cost(shape: Shape) -> Cost:
    """R = k T rows out and as many back when balanced; router, three GEMMs with their branches per row, weighted sum."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    rows = s.k * s.T
    weights = (3 * s.H * s.I + 2 * s.I + s.H + 3 * s.rk * (s.H + s.I) + s.E * (s.H + 1)) * b
    row_bytes = rows * s.H * b
    # A rank can receive several times its share: up to four here.
    footprint = weights + s.T * s.H * (2 * b + 4) + rows * s.H * (2 * b + 4) + 4 * (5 * row_bytes + 6 * rows * s.I * b)
    return Cost(
        sent_bytes=8 * s.E * (world_size - 1) + 2 * row_bytes * (world_size - 1) / world_size,
        flops=2 * s.T * s.H * s.E + 6 * rows * s.H * s.I + 6 * rows * s.rk * (s.H + s.I) + 2 * rows * s.H,
        memory_bytes=weights + 2 * s.T * s.H * b + 3 * row_bytes,
        footprint_bytes=footprint,
    )


PROBLEM = Problem(
    title="Expert-parallel MoE forward whose expert MLP carries LoRA branches",
    category="expert parallel",
    source="VeOmni fused-MoE expert-parallel path with LoRA",
    sizes={
        "smoke": {"T": 64, "H": 64, "I": 32, "E": 12, "k": 2, "rk": 4},
        "default": {"T": 1024, "H": 1024, "I": 128, "E": 8, "k": 2, "rk": 8},
        "production": {"T": 8192, "H": 4096, "I": 14336, "E": 8, "k": 2, "rk": 32},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "the router is replicated and its weights are scaled by 1/sqrt(H), so that the second expert matters",
        "logits have a gap of 0.5 between places k and k+1, so that every implementation routes alike",
        "routing is skewed and leaves an expert without tokens; the number of tokens differs by rank; one trial has no bias, "
        "one odd sizes and three-dimensional hidden states",
        "LoRA factors are scaled so that a branch is a third of its base layer; unscaled ones drown it",
        "the LoRA factors shared by all experts are replicated, as in training",
        "MLP weights are scaled so that the output is of order one; the module parameters require no gradient",
        "the weighted rows of a token are added in fp32 and rounded once; the original adds in the dtype of the rows",
    ),
    tags=("all-to-all",),
)
