"""Problem 058: sigmoid contrastive loss around a ring. The harness's side: sizes, inputs, tolerance, cost."""

import math

import torch
import torch.nn.functional as F

from pkb.problem import Context, Cost, Problem, Shape, Tolerance


def make_inputs(ctx: Context) -> tuple:
    """Unit features; matching pairs have cosine about 0.75, others about 0.25, different for each pair of ranks.

    Scale and bias are such that the negatives of one block cost each image about as much as a few pairs at chance, whatever b
    is: foreign blocks make up most of the loss, and a wrong label shows. One pair per rank and mild logits in the edge trial.
    """
    b = {"ragged": ctx.size.b - 3, "edge": 1}.get(ctx.variant, ctx.size.b)
    dim = ctx.size.D
    common = F.normalize(ctx.shared.randn(dim, dtype=torch.float32), dim=0)
    high = (ctx.rank + ctx.shared.integer(0, 2)) % 2  # neighbours' texts differ clearly in how close they are to all images
    alpha_text = ctx.own.real(0.55, 0.62) if high else ctx.own.real(0.38, 0.45)
    alpha_image = ctx.own.real(0.44, 0.56)
    text = F.normalize(ctx.own.values(b, dim, dtype=torch.float32), dim=1)
    other = F.normalize(ctx.own.randn(b, dim, dtype=torch.float32), dim=1)
    image = F.normalize(2 / 3 * text + math.sqrt(5) / 3 * other, dim=1)
    text_features = F.normalize(alpha_text * common + math.sqrt(1 - alpha_text**2) * text, dim=1)
    image_features = F.normalize(alpha_image * common + math.sqrt(1 - alpha_image**2) * image, dim=1)

    scale = 2 * (math.log(max(b, 4) / 4) + 3) * ctx.shared.real(0.9, 1.1)
    bias = -0.25 * scale - math.log(max(b, 4) / 4) + ctx.shared.real(-0.5, 0.5)
    if ctx.variant == "edge":
        scale, bias = ctx.shared.real(1.0, 3.0), 0.0
    return image_features.to(ctx.dtype), text_features.to(ctx.dtype), scale, bias, None


def admissible(shape: Shape) -> str | None:
    return None if shape.size.b > 3 else f"b={shape.size.b} must be at least 4"


def cost(shape: Shape) -> Cost:
    """Every other rank needs this rank's texts, b D e bytes each; W blocks of a GEMM and about ten operations per logit."""
    z, e, w = shape.size, shape.element_size, shape.world_size
    return Cost(
        sent_bytes=(w - 1) * z.b * z.D * e,
        flops=2 * w * z.b**2 * z.D + 10 * w * z.b**2,
        memory_bytes=2 * z.b * z.D * e + (w - 1) * z.b * z.D * e + e,
        footprint_bytes=7 * z.b * z.D * e + 6 * z.b**2 * e,
    )


PROBLEM = Problem(
    title="Sigmoid (SigLIP) image-text loss with text features exchanged between neighbours in both ring directions",
    category="data parallel",
    source="OpenCLIP (SigLIP loss, bidirectional neighbour exchange)",
    sizes={
        "smoke": {"b": 32, "D": 64},
        "default": {"b": 128, "D": 1024},
        "production": {"b": 4096, "D": 1152},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    # one scalar: its reference error can be zero by luck, and the reference rounds the running loss once per block
    tolerance=Tolerance(floor_ulps=4.0),
    deviations=(
        "images and texts are correlated, scale and bias vary and depend on b, so that foreign blocks are most of the loss; in "
        "the original they are below the rounding of bf16 and the exchange cannot be seen",
        "features have rank-dependent means, so that every block contributes another amount",
    ),
    tags=("contrastive loss", "ring", "point-to-point"),
)
