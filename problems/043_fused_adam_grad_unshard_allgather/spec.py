"""Problem 043: Adam and all-gather. The harness's side: sizes, inputs, cost."""

from pkb.inputs.adam import betas
from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """A shard of a run in progress; gradients and moments of every magnitude from 1/16 to 1.

    The step exceeds the master weights: what is compared is mostly their change, although no rank knows the old weights of
    the others. ragged: an odd
    number of elements. edge: step 1, elements whose gradient and moments are zero, and an eps as large as sqrt(v).
    """
    import torch

    p = ctx.size.p
    if ctx.variant == "ragged":
        p = p - 1 + p % 2
    lr, (beta1, beta2) = ctx.shared.real(0.08, 0.2), betas(ctx.shared)
    step = 1 if ctx.variant == "edge" else ctx.shared.integer(2, 8)
    eps = {"wide": 1e-3, "edge": 0.5}.get(ctx.variant, 1e-8)

    scale = torch.exp2(ctx.own.uniform(-4, 0, p, dtype=torch.float32))
    quarter = 0.25 if ctx.variant == "integers" else 1.0
    gradient = ctx.own.values(p, dtype=torch.float32) * scale * quarter
    m = ctx.own.randn(p, dtype=torch.float32) * scale * (0.4 * (1 - beta1**step))
    v = ctx.own.uniform(0.5, 2.0, p, dtype=torch.float32) * scale**2 * (1 - beta2**step)
    if ctx.variant == "edge":
        alive = ctx.own.uniform(0, 1, p, dtype=torch.float32) > 0.1
        gradient, m, v = gradient * alive, m * alive, v * alive
    master = ctx.own.randn(p, scale=0.02)
    gradient, m, v = (t.to(ctx.dtype) for t in (gradient, m, v))
    return gradient, master, m, v, lr, beta1, beta2, eps, step


def cost(shape: Shape) -> Cost:
    """All-gather of p elements per rank after an elementwise pass over four tensors."""
    p, b, world_size = shape.size.p, shape.element_size, shape.world_size
    return Cost(
        sent_bytes=(world_size - 1) * p * b,
        flops=12 * p,
        memory_bytes=(4 + world_size) * p * b,
        footprint_bytes=(9 + world_size) * p * b,
    )


PROBLEM = Problem(
    title="Adam on a flat parameter shard followed by an all-gather of the updated shards",
    category="FSDP/ZeRO",
    source="generic (ZeRO/FSDP optimizer step with parameter re-materialisation)",
    sizes={
        "smoke": {"p": 1000},
        "default": {"p": 4096},
        "production": {"p": 67108864},
    },
    make_inputs=make_inputs,
    cost=cost,
    # elementwise, without a sum to reorder: twice the factor would let shards travel in 8 bits
    tolerance=Tolerance(factor=3.0),
    deviations=(
        "master weights have a standard deviation of 0.02 and lr is 0.08 to 0.2: the step exceeds the weights; the "
        "original's step is below its tolerance",
        "moments are random, positive for v, and fit the gradients; the original's are zero at any step",
        "betas, eps, lr and step differ by trial, betas and their complements are exact in fp32; every rank draws its own shard",
    ),
    tags=("all-gather", "optimizer"),
)
