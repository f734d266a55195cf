"""Problem 046: language-model head for decoding. The harness's side: sizes, inputs, tolerance, cost."""

from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """Replicated tokens, and a weight and bias shard drawn by each rank; logits and biases are of order one.

    The number of tokens differs by trial, and is more than one in all but the edge trial. ragged: an odd shard and an odd
    hidden size. edge: one token and a shard of three entries.
    """
    s = ctx.size
    tokens = {"integers": 4, "wide": 8, "ragged": 5, "edge": 1}.get(ctx.variant, s.T)
    hidden, shard = s.H, s.V // ctx.world_size
    if ctx.variant == "ragged":
        hidden, shard = hidden - 3, shard - 1 + shard % 2
    if ctx.variant == "edge":
        shard = 3
    # Integers in [-8, 8] have an RMS of about 5.
    scale = (0.2 if ctx.variant == "integers" else 1.0) / hidden**0.5
    x = ctx.shared.values(tokens, hidden)
    return x, ctx.own.randn(shard, hidden, scale=scale), ctx.own.values(shard)


def admissible(shape: Shape) -> str | None:
    if shape.size.V % shape.world_size:
        return f"a vocabulary of V={shape.size.V} cannot be cut into {shape.world_size} equal shards; set size.V to a multiple"
    return None


def cost(shape: Shape) -> Cost:
    """A product with the weight shard, and an all-gather of the logits."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    shard = s.V // world_size
    return Cost(
        sent_bytes=(world_size - 1) * s.T * shard * b,
        flops=2 * s.T * s.H * shard,
        memory_bytes=(shard * s.H + s.T * s.H + shard + s.T * s.V) * b,
        footprint_bytes=(shard * s.H + s.T * s.H + shard + 2 * s.T * shard + 2 * s.T * s.V) * b,
    )


PROBLEM = Problem(
    title="Vocabulary-sharded LM head for decoding: local logits plus all-gather along the vocabulary",
    category="tensor parallel",
    source="generic (column-parallel output layer as in Megatron-LM and vLLM decoding)",
    sizes={
        "smoke": {"T": 3, "H": 128, "V": 1000},
        "default": {"T": 1, "H": 1024, "V": 8192},
        "production": {"T": 8, "H": 8192, "V": 128256},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "weights are scaled by 1/sqrt(H), so that logits and biases are both of order one",
        "the number of tokens differs by trial; with one token the order of tokens and shards cannot be wrong",
        "every rank draws its own shard; one trial has odd sizes, one a shard of three entries",
    ),
    tags=("all-gather",),
)
