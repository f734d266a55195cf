"""Inputs of one training step of a 2-layer MLP, whose parameters form one flat vector W1, b1, W2, b2 (row-major).

The scales are those of a run in progress: weights of standard deviation 1/sqrt(fan-in), Adam moments that fit the gradients
this model and batch produce, and a step large enough that the new parameters differ visibly from the old ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pkb.draw import Draw
from pkb.inputs.adam import betas
from pkb.problem import Context, Shape

Q = tuple[float, float, float, float]  # one number for each of W1, b1, W2, b2


@dataclass(frozen=True)
class Mlp:
    """A model and a batch: x (rows, d_in) -> relu(x W1^T + b1) W2^T + b2, (rows, d_out); ``rows`` per rank."""

    rows: int
    d_in: int
    hidden: int
    d_out: int
    world_size: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of W1, b1, W2, b2."""
        return (self.hidden, self.d_in), (self.hidden,), (self.d_out, self.hidden), (self.d_out,)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def parameters(self) -> int:
        """P: elements of the flat vector."""
        return sum(self.counts)

    @property
    def weight_scale(self) -> Q:
        """Standard deviation of the parameters."""
        return self.d_in**-0.5, 0.1, self.hidden**-0.5, 0.1

    @property
    def gradient_scale(self) -> Q:
        """About the RMS of the gradient averaged over all ranks.

        A part that every sample adds with a random sign, and a part that all samples share because the output depends on
        the weights.
        """
        samples = self.rows * self.world_size
        inner = math.sqrt(2.9 / (samples * self.d_out * self.hidden) + 0.25 / (self.hidden**2 * self.d_in))
        outer = 2 / self.d_out * math.sqrt(0.7 / samples + 0.2 / self.hidden)
        return inner, inner, outer, outer


def mlp_of(shape: Shape, ragged: bool = False, sharded: bool = False) -> Mlp | None:
    """The model of a size with dimensions n_total, d_in, h, d_out.

    ragged: odd widths and rows. sharded: h is raised by one until the world size divides the number of parameters; None if
    no value within 1024 does.
    """
    s, world_size = shape.size, shape.world_size
    rows = -(-s.n_total // world_size)
    d_in, d_out = s.d_in, s.d_out
    if ragged:
        rows, d_in, d_out = max(1, rows - 3), d_in - 1 + d_in % 2, d_out - 1 + d_out % 2
    for hidden in range(s.h, s.h + 1024):
        mlp = Mlp(rows, d_in, hidden, d_out, world_size)
        if not sharded or mlp.parameters % world_size == 0:
            return mlp
    return None


def sharded_mlp(ctx: Context) -> Mlp:
    """The model of a draw whose flat vector is cut into equal slices, with odd widths in the ragged trial where possible."""
    mlp = mlp_of(ctx, ctx.variant == "ragged", sharded=True) or mlp_of(ctx, sharded=True)
    assert mlp is not None, "admissible() lets no other shape through"
    return mlp


def indivisible(shape: Shape) -> str | None:
    """Why the flat vector cannot be cut into equal slices, or None."""
    if mlp_of(shape, sharded=True):
        return None
    return f"no h from {shape.size.h} on makes the number of parameters a multiple of {shape.world_size}; change size.d_out"


def batch(ctx: Context, mlp: Mlp) -> tuple[Any, Any]:
    """This rank's samples (rows, d_in) and targets (rows, d_out), of order one."""
    quarter = 0.25 if ctx.variant == "integers" else 1.0
    return ctx.own.values(mlp.rows, mlp.d_in) * quarter, ctx.own.values(mlp.rows, mlp.d_out) * quarter


def hyperparameters(ctx: Context, mlp: Mlp) -> tuple[float, float, float, float, int]:
    """(lr, beta1, beta2, eps, step), different in every trial; eps is comparable with sqrt(v) in two of them."""
    draw = ctx.stream("hyperparameters")
    lr, (beta1, beta2) = draw.real(0.05, 0.15), betas(draw)
    step = 1 if ctx.variant == "edge" else draw.integer(2, 8)
    eps = {"wide": 0.1 * mlp.gradient_scale[0], "edge": 0.5 * mlp.gradient_scale[2]}.get(ctx.variant, 1e-8)
    return lr, beta1, beta2, eps, step


def flat_parameters(ctx: Context, mlp: Mlp, draw: Draw, first: int, end: int) -> Any:
    """Elements first..end of the flat parameters, in the requested dtype."""
    import torch

    p = draw.randn(end - first, dtype=torch.float32) * _piecewise(mlp.weight_scale, mlp, first, end, ctx.device)
    if (dead := _dead_unit(ctx, mlp)) is not None:
        bias = mlp.counts[0] + dead - first
        if 0 <= bias < end - first:
            p[bias] = -50.0
    return p.to(ctx.dtype)


def flat_moments(ctx: Context, mlp: Mlp, draw: Draw, first: int, end: int) -> tuple[Any, Any]:
    """Adam moments (m, v) of elements first..end, as they stand after some steps with gradients of the model's scale.

    In the edge trial one hidden unit is dead (its gradients are exactly zero) and its moments are zero too.
    """
    import torch

    _, beta1, beta2, _, step = hyperparameters(ctx, mlp)
    scale = _piecewise(mlp.gradient_scale, mlp, first, end, ctx.device)
    m = draw.randn(end - first, dtype=torch.float32) * scale * (0.4 * (1 - beta1**step))
    v = draw.uniform(0.5, 2.0, end - first, dtype=torch.float32) * scale**2 * (1 - beta2**step)
    if (dead := _dead_unit(ctx, mlp)) is not None:
        alive = ~_of_unit(mlp, dead, first, end, ctx.device)
        m, v = m * alive, v * alive
    return m.to(ctx.dtype), v.to(ctx.dtype)


def root_or_stale_parameters(ctx: Context, mlp: Mlp, lr: float) -> Any:
    """The flat parameters: the true ones on rank 0, and copies that missed a step on the others.

    They differ from the true ones by about the step, so that neither a missing broadcast nor a missing step is small beside
    the change that is compared.
    """
    import torch

    flat = flat_parameters(ctx, mlp, ctx.stream("parameters"), 0, mlp.parameters)
    if ctx.rank:
        flat = (flat + 0.5 * lr * ctx.own.randn(mlp.parameters, dtype=torch.float32)).to(ctx.dtype)
    return flat


def unflatten(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The flat vector as separate contiguous tensors of these shapes."""
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.clone().view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _piecewise(values: Q, mlp: Mlp, first: int, end: int, device: str) -> Any:
    """A flat fp32 vector with one constant for each parameter, cut to first..end."""
    import torch

    pieces, offset = [], 0
    for value, count in zip(values, mlp.counts, strict=True):
        size = min(end, offset + count) - max(first, offset)
        if size > 0:
            pieces.append(torch.full((size,), value, dtype=torch.float32, device=device))
        offset += count
    return torch.cat(pieces)


def _dead_unit(ctx: Context, mlp: Mlp) -> int | None:
    return ctx.stream("dead unit").integer(0, mlp.hidden) if ctx.variant == "edge" else None


def _of_unit(mlp: Mlp, unit: int, first: int, end: int, device: str) -> Any:
    """Which of the flat elements first..end belong to this hidden unit: its row of W1, its b1, its column of W2."""
    import torch

    i = torch.arange(first, end, device=device)
    w1, b1, w2, _ = mlp.counts
    in_w2 = (i >= w1 + b1) & (i < w1 + b1 + w2)
    return ((i < w1) & (i // mlp.d_in == unit)) | (i == w1 + unit) | (in_w2 & ((i - w1 - b1) % mlp.hidden == unit))
