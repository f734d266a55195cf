"""Problem 047: FSDP step. The harness's side: sizes, inputs, what is compared, cost."""

from pkb.inputs import mlp_step
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """A step of a run in progress; every rank draws its own slice of parameters and moments.

    ragged: odd widths and rows, so that slices start at odd addresses. edge: step 1, a hidden unit without gradients and
    moments, and an eps as large as sqrt(v).
    """
    mlp = mlp_step.sharded_mlp(ctx)
    lr, beta1, beta2, eps, step = mlp_step.hyperparameters(ctx, mlp)
    weight_decay = ctx.stream("weight decay").real(0.3, 1.0)
    x, y = mlp_step.batch(ctx, mlp)
    share = mlp.parameters // ctx.world_size
    first, end = ctx.rank * share, (ctx.rank + 1) * share
    draw = ctx.stream("state", shared=False)
    parameters = mlp_step.flat_parameters(ctx, mlp, draw, first, end)
    m, v = mlp_step.flat_moments(ctx, mlp, draw, first, end)
    return x, y, parameters, mlp.shapes, m, v, lr, beta1, beta2, eps, weight_decay, step


def observe(before, outputs, after):
    """The change of the parameters, and both moments."""
    return (outputs[0] - before[2], *outputs[1:])


def cost(shape: Shape) -> Cost:
    """All-gather and reduce-scatter of P elements; forward, backward without dX, AdamW on P / W."""
    mlp = mlp_step.mlp_of(shape, sharded=True)
    assert mlp
    b, world_size = shape.element_size, shape.world_size
    p, rows = mlp.parameters, mlp.rows
    samples = rows * (mlp.d_in + mlp.d_out) * b
    activations = rows * (4 * mlp.hidden + 4 * mlp.d_out) * b
    return Cost(
        sent_bytes=2 * (world_size - 1) / world_size * p * b,
        flops=4 * rows * mlp.d_in * mlp.hidden + 6 * rows * mlp.hidden * mlp.d_out + 14 * p / world_size,
        memory_bytes=samples + 4 * p * b + 6 * p / world_size * b,
        footprint_bytes=samples + activations + 4 * p * b + 9 * p / world_size * b,
    )


PROBLEM = Problem(
    title="Complete fully-sharded (ZeRO-3/FSDP) training step: all-gather, local backward, reduce-scatter, AdamW on own shard",
    category="FSDP/ZeRO",
    source="PyTorch FSDP (flat parameter)",
    sizes={
        "smoke": {"n_total": 64, "d_in": 64, "h": 32, "d_out": 16},
        "default": {"n_total": 1024, "d_in": 256, "h": 512, "d_out": 256},
        "production": {"n_total": 65536, "d_in": 4096, "h": 16384, "d_out": 4096},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=mlp_step.indivisible,
    observe=observe,
    deviations=(
        "the change of the parameters is compared, with lr of 0.05 to 0.15; the original's step is below its tolerance",
        "weights are scaled by 1/sqrt(fan-in), so that targets matter",
        "moments are random, positive for v, and fit the gradients; the original's are zero at any step",
        "every slice of the parameters is random; the original's are zero but rank 0's, so that most gradients vanish",
        "weight decay is 0.3 to 1, so that it shows; the original's is lost in the rounding",
        "betas, eps, lr and step differ by trial; one trial has odd widths",
    ),
    tags=("all-gather", "reduce-scatter", "optimizer"),
)
