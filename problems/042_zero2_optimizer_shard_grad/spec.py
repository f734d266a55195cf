"""Problem 042: ZeRO stage 2 step. The harness's side: sizes, inputs, what is compared, cost."""

from pkb.inputs import mlp_step
from pkb.problem import Context, Cost, Problem, Shape


def make_inputs(ctx: Context) -> tuple:
    """A step of a run in progress: true parameters on rank 0, stale ones elsewhere, moments of the own slice.

    ragged: odd widths and rows, so that slices start at odd addresses. edge: step 1, a hidden unit without gradients and
    moments, and an eps as large as sqrt(v).
    """
    mlp = mlp_step.sharded_mlp(ctx)
    lr, beta1, beta2, eps, step = mlp_step.hyperparameters(ctx, mlp)
    x, y = mlp_step.batch(ctx, mlp)
    parameters = mlp_step.unflatten(mlp_step.root_or_stale_parameters(ctx, mlp, lr), mlp.shapes)
    share = mlp.parameters // ctx.world_size
    m, v = mlp_step.flat_moments(ctx, mlp, ctx.stream("moments", shared=False), ctx.rank * share, (ctx.rank + 1) * share)
    return x, y, *parameters, m, v, lr, beta1, beta2, eps, step


def observe(before, outputs, after):
    """The change of the parameters, and both moments."""
    changes = [new - old for new, old in zip(outputs[:4], before[2:6], strict=True)]
    return (*changes, *outputs[4:])


def cost(shape: Shape) -> Cost:
    """Pipelined broadcast, reduce-scatter and all-gather of P elements; forward, backward without dX, Adam on P / W."""
    mlp = mlp_step.mlp_of(shape, sharded=True)
    assert mlp
    b, world_size = shape.element_size, shape.world_size
    p, rows = mlp.parameters, mlp.rows
    samples = rows * (mlp.d_in + mlp.d_out) * b
    activations = rows * (4 * mlp.hidden + 4 * mlp.d_out) * b
    return Cost(
        sent_bytes=3 * (world_size - 1) / world_size * p * b,
        flops=4 * rows * mlp.d_in * mlp.hidden + 6 * rows * mlp.hidden * mlp.d_out + 12 * p / world_size,
        memory_bytes=samples + 4 * p * b + 4 * p / world_size * b,
        footprint_bytes=samples + activations + 5 * p * b + 8 * p / world_size * b,
    )


PROBLEM = Problem(
    title="Training step with sharded gradients and Adam state (ZeRO stage 2): broadcast, reduce-scatter, Adam, all-gather",
    category="FSDP/ZeRO",
    source="DeepSpeed ZeRO stage 2",
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
        "ranks other than 0 hold stale parameters; the original's hold zeros",
        "betas, eps, lr and step differ by trial; one trial has odd widths, one a hidden unit without gradients",
    ),
    tags=("broadcast", "reduce-scatter", "all-gather", "optimizer"),
)
