"""Problem 025: importance-sampling policy loss. The harness's side: sizes, inputs, tolerance, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb.problem import Context, Cost, Problem, Shape, Tolerance

if TYPE_CHECKING:
    import torch

CHUNK = 1024  # tokens whose logits are held at once while labels are drawn


def _sampled(ctx: Context, hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(labels, fp32 log-probabilities): half of the tokens sampled from the model itself, half uniform."""
    import torch

    labels, logprobs = [], []
    for rows in hidden.split(CHUNK):
        logits = rows.float() @ weight.float().t()
        noise = -torch.log(-torch.log(ctx.own.uniform(1e-6, 1 - 1e-6, *logits.shape, dtype=torch.float32)))
        sampled = (logits + noise).argmax(-1)  # Gumbel's trick
        anything = ctx.own.integers(0, weight.shape[0], len(rows))
        chosen = torch.where(ctx.own.integers(0, 2, len(rows)) == 0, anything, sampled)
        labels.append(chosen)
        logprobs.append(logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0])
    return torch.cat(labels), torch.cat(logprobs)


def make_inputs(ctx: Context) -> tuple:
    """(hidden_states, weight, labels, old_logprobs, advantages, ignore_index).

    The head is replicated. Logits are of order one to two, the old log-probabilities are the true ones plus noise, and 20 to
    60 % of the labels are ignored; the amounts differ by rank, and which rank has most moves with the trial.
    """
    import torch

    T, H, V = ctx.size.T, ctx.size.H, ctx.size.V
    if ctx.variant == "ragged":
        T, H, V = 3 * max(1, T // 3 - 1), H - 3, V - 5
    fp32 = torch.float32
    turn = (ctx.rank + ctx.stream("turn").integer(0, ctx.world_size)) % ctx.world_size
    share = turn / (ctx.world_size - 1)  # 0 to 1, different on every rank

    weight = ctx.shared.randn(V, H)
    hidden = ctx.own.randn(T, H, scale=(1 + share) * H**-0.5)
    if ctx.variant == "wide":
        hidden = ctx.own.values(T, H, scale=H**-0.5)
    labels, logprobs = _sampled(ctx, hidden, weight)
    old_logprobs = logprobs + (0.2 + 0.4 * share) * ctx.own.randn(T, dtype=fp32)
    advantages = 0.3 + 0.4 * share + ctx.own.values(T, dtype=fp32, scale=0.5)
    if ctx.variant == "integers":
        advantages = ctx.own.integers(-1, 3, T, dtype=fp32)
    if ctx.variant in ("wide", "edge"):
        old_logprobs[:: max(1, T // 8)] += 30.0  # these reach the lower clamp

    # -100 never occurs as a token; the ragged trial ignores a token of the vocabulary, as padding is
    ignore_index = ctx.shared.integer(0, V) if ctx.variant == "ragged" else ctx.shared.choice((-100, -1))
    ignored = ctx.own.uniform(0, 1, T, dtype=fp32) < 0.2 + 0.4 * share
    ignored[-1] = False
    if ctx.variant == "edge" and ctx.rank == ctx.stream("silent").integer(0, ctx.world_size):
        ignored[:] = True
    labels = labels.masked_fill(ignored, ignore_index)
    lead = (3, T // 3) if ctx.variant == "ragged" else (T,)
    return (
        hidden.view(*lead, H),
        weight,
        labels.view(lead),
        old_logprobs.view(lead),
        advantages.view(lead),
        ignore_index,
    )


def cost(shape: Shape) -> Cost:
    """One packed exchange of seven fp32 scalars; the head's GEMM and softmax, without storing logits (the reference does)."""
    T, H, V, b = shape.size.T, shape.size.H, shape.size.V, shape.element_size
    return Cost(
        sent_bytes=28 * (shape.world_size - 1),
        flops=2 * T * H * V + 4 * T * V,
        memory_bytes=V * H * b + T * H * b + T * 16 + T * (b + 4),
        footprint_bytes=V * H * b + T * H * b + 3 * T * V * b + 64 * T,
    )


PROBLEM = Problem(
    title="Policy-gradient loss with importance ratios from a language-model head, with global token normalisation and metrics",
    category="data parallel",
    source="RL post-training of LLMs (importance-sampling policy loss, VeOmni-family trainer)",
    sizes={
        "smoke": {"T": 64, "H": 64, "V": 512},
        "default": {"T": 1024, "H": 1024, "V": 32000},
        "production": {"T": 8192, "H": 4096, "V": 151936},
    },
    make_inputs=make_inputs,
    cost=cost,
    # loss and metrics are fp32 but carry the rounding of cross entropies to the dtype, which in the reference may cancel by
    # chance: at least 1 % of the loss and 0.1 % of the metrics' norm are allowed in bfloat16
    tolerance=(Tolerance(floor_ulps=300, input_ulps=4.6), Tolerance(), Tolerance(), Tolerance(floor_ulps=30, input_ulps=0.46)),
    deviations=(
        "hidden states are scaled to logits of order one and old log-probabilities are the true ones plus noise, so that "
        "ratios are near 1; the original's log-ratios are all clamped, which makes loss and ratios 0",
        "20 to 60 % of the labels are ignored, by rank, in one trial with an index inside the vocabulary and in another all "
        "labels of a rank; the original ignores none",
        "the head is replicated, half of the labels are sampled from it, and advantages have a positive mean",
        "one trial has odd sizes and a two-dimensional batch",
        "old_logprobs and advantages are fp32 whatever the requested dtype",
    ),
)
