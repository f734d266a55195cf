"""Problem 040: data-parallel step. The harness's side: sizes, inputs, what is compared, cost."""

from pkb.inputs import mlp_step
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """A step of a run in progress: true state on rank 0, stale parameters and other moments elsewhere.

    ragged: odd widths and rows. edge: step 1, a hidden unit without gradients and moments, and an eps as large as sqrt(v).
    """
    mlp = mlp_step.mlp_of(ctx, ragged=ctx.variant == "ragged")
    assert mlp
    lr, beta1, beta2, eps, step = mlp_step.hyperparameters(ctx, mlp)
    x, y = mlp_step.batch(ctx, mlp)
    parameters = mlp_step.root_or_stale_parameters(ctx, mlp, lr)
    moments = mlp_step.flat_moments(ctx, mlp, ctx.stream("moments", shared=False), 0, mlp.parameters)
    state = [t for flat in (parameters, *moments) for t in mlp_step.unflatten(flat, mlp.shapes)]
    return x, y, *state, lr, beta1, beta2, eps, step


def observe(before, outputs, after):
    """The change of the parameters, and both moments."""
    changes = [new - old for new, old in zip(outputs[:4], before[2:6], strict=True)]
    return (*changes, *outputs[4:])


def cost(shape: Shape) -> Cost:
    """Three broadcasts, pipelined, and an all-reduce of P elements; forward, backward without dX, Adam."""
    mlp = mlp_step.mlp_of(shape)
    assert mlp
    b, share = shape.element_size, (shape.world_size - 1) / shape.world_size
    p, rows = mlp.parameters, mlp.rows
    samples = rows * (mlp.d_in + mlp.d_out) * b
    activations = rows * (4 * mlp.hidden + 4 * mlp.d_out) * b
    return Cost(
        sent_bytes=(3 + 2) * share * p * b,
        flops=4 * rows * mlp.d_in * mlp.hidden + 6 * rows * mlp.hidden * mlp.d_out + 12 * p,
        memory_bytes=samples + 6 * p * b,
        footprint_bytes=samples + activations + 10 * p * b,
    )


PROBLEM = Problem(
    title="One data-parallel training step of a 2-layer MLP: broadcast, local backward, gradient all-reduce, Adam",
    category="data parallel",
    source="generic (PyTorch DistributedDataParallel with one flat bucket, and Adam)",
    sizes={
        "smoke": {"n_total": 64, "d_in": 64, "h": 32, "d_out": 16},
        "default": {"n_total": 1024, "d_in": 256, "h": 512, "d_out": 256},
        "production": {"n_total": 65536, "d_in": 4096, "h": 16384, "d_out": 4096},
    },
    make_inputs=make_inputs,
    cost=cost,
    observe=observe,
    deviations=(
        "the change of the parameters is compared, with lr of 0.05 to 0.15; the original's step is below its tolerance",
        "weights are scaled by 1/sqrt(fan-in), so that targets matter",
        "moments are random, positive for v, and fit the gradients; the original's are zero at any step",
        "ranks other than 0 hold stale parameters and other moments; the original's hold zeros",
        "betas, eps, lr and step differ by trial; one trial has odd widths, one a hidden unit without gradients",
    ),
    tags=("broadcast", "all-reduce", "optimizer"),
)
