"""A wrong answer as a trusted rank sees it, and what a mistake would have made of the right one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

#: How near a value must be to a hypothesis, in units of what the comparison allows.
SLACK = 2.0


@dataclass(frozen=True)
class Known:
    """What trusted ranks know of one call, seen from one output: values by rank, None where a rank's are not at hand.

    expected: the output. alone: the same if nothing had been exchanged. inputs: (name, tensor) of the call's inputs.
    """

    expected: list[torch.Tensor | None]
    alone: list[torch.Tensor | None]
    inputs: list[list[tuple[str, torch.Tensor]]]


@dataclass(frozen=True)
class Scene:
    """One wrong output on one rank; all tensors are real (complex numbers have a last dimension of two).

    allowed: by element, the largest error that passes (zeros: exact). before, after: the calls around this one, nearest first.
    mistaken: what the reference returns with a mistake in its collectives (``replayed``), and what that is called.
    """

    rank: int
    world_size: int
    expected: torch.Tensor
    got: torch.Tensor
    allowed: torch.Tensor
    now: Known
    before: list[Known] = field(default_factory=list)
    after: list[Known] = field(default_factory=list)
    mistaken: list[tuple[dict[str, Any], torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class Hypothesis:
    """values: flat, what would have been returned (NaN: does not say). about: the finding's kind and parameters."""

    values: torch.Tensor
    about: dict[str, Any]


def wide(x: torch.Tensor) -> torch.Tensor:
    """Flat float64 values; integers beyond 2**53 lose their last digits, which is enough here."""
    return x.detach().reshape(-1).to(torch.float64)


def near(wanted: torch.Tensor, got: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Element by element, whether two are equal within what is allowed; NaN equals NaN."""
    return ((got - wanted).abs() <= allowed) | (got == wanted) | (got.isnan() & wanted.isnan())


def rounded(allowed: torch.Tensor, values: torch.Tensor, scene: Scene) -> torch.Tensor:
    """What is allowed between an answer and a hypothesis, whose values may be far larger than the right ones: they are rounded too."""
    dtype = scene.expected.dtype
    return allowed + torch.finfo(dtype).eps * values.abs() if dtype.is_floating_point else allowed


def fits(x: torch.Tensor | None, scene: Scene) -> TypeGuard[torch.Tensor]:
    """Whether a tensor can stand for the output, element by element."""
    return x is not None and x.numel() == scene.expected.numel()


def neighbours(scene: Scene) -> Iterator[tuple[dict[str, Any], Known]]:
    """The calls around this one, the likeliest to be mixed up with it first."""
    calls = [("before", 1, k) for k in scene.before[:1]] + [("after", 1, k) for k in scene.after[:1]]
    if len(calls) == 2 and _same_call(calls[0][2], calls[1][2], scene.rank):
        calls = [("either", 1, scene.before[0])]
    calls += [("before", i, k) for i, k in enumerate(scene.before[1:], 2)]
    for which, distance, known in calls:
        yield {"kind": "stale", "which": which, "distance": distance}, known


def _same_call(a: Known, b: Known, rank: int) -> bool:
    """Whether two calls had the same inputs, so that data of one cannot be told from data of the other."""
    x, y = a.expected[rank], b.expected[rank]
    return x is not None and y is not None and x.shape == y.shape and torch.equal(x, y)
