"""Calls in a chain: what one call is asked depends on what the one before answered, so none can be answered ahead of its turn.

Between two calls the harness adds up the bits of the answer and moves some rows of one input of the next call by that sum, on the
device and in stream order. Both sides do the same, and the reference repeats it for the calls that are judged, from the sums that the
candidate has named (docs/timing.md).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pkb import tree
from pkb.evaluate.seat import bit_sum, sum_of
from pkb.problem import Problem
from pkb.table import Table

_SPREAD = 0x5851F42D4C957F2D  # odd; keeps the rows of a move apart in all 64 bits
PART = 8  # one row in so many moves: enough to change every answer, little against a call


@dataclass
class Chain:
    """``solve``, each call of which depends on the one before.

    place: which leaf of the inputs changes between calls. changed: the inputs, by position,
    that belong to an answer.
    """

    solve: Callable[..., Any]
    place: int
    changed: Sequence[int]
    total: torch.Tensor | None = None  # of the last answer

    def __call__(self, *inputs: Any) -> Any:
        if self.total is not None:
            move(inputs, self.place, self.total)
        output = self.solve(*inputs)
        self.total = sum_of(output, inputs, self.changed)
        return output


def move(inputs: Sequence[Any], place: int, total: torch.Tensor) -> None:
    """Overwrite every eighth row of leaf ``place`` with another; which, and with which, follows from ``total`` (0-d, int64)."""
    with torch.no_grad():
        x = list(tree.leaves(list(inputs)))[place][1].detach()
        dim = _dimension(x)
        assert dim is not None
        # squared, each row depends on all bits of the sum: who bends the last digits of an answer can choose few of the rows, not all
        n = x.shape[dim]
        here, other = _rows(n, x.device)
        target, mixed = (here + total) % n, other + total
        x.index_copy_(dim, target, x.index_select(dim, (target + 1 + (mixed * mixed >> 33) % (n - 1)) % n))


def movable(problem: Problem, inputs: Sequence[Any]) -> list[tuple[int, int, int]]:
    """(place among all leaves, bit sum, elements) of each tensor of a rank's inputs that may change between calls.

    These are real or complex numbers in two rows or more, unless the problem says that their rows belong where they are
    (``Problem.fixed``). None where there is a table: a block's sets share it, so a single call cannot be repeated alone.
    """
    if any(isinstance(x, Table) for x in inputs):
        return []
    names = [p.name for p in problem.parameters()]
    found, place = [], -1
    for i, value in enumerate(inputs):
        for _, x in tree.leaves(value):
            place += 1
            if names[i] not in problem.fixed and _can_move(x):
                found.append((place, int(bit_sum(x)), x.numel()))
    return found


def choose(by_rank: Sequence[Sequence[Sequence[int]]]) -> int | None:
    """The largest tensor that may change on all ranks and differs between any two of them, or None.

    by_rank: ``movable`` of every rank. What is the same on several ranks may belong together (weights, for instance), so it stays.
    """
    seen = Counter(place for of_rank in by_rank for place, _, _ in of_rank)
    sums: dict[int, set[int]] = {}
    sizes: Counter[int] = Counter()
    for of_rank in by_rank:
        for place, total, size in of_rank:
            sums.setdefault(place, set()).add(total)
            sizes[place] += size
    free = [place for place, ranks in seen.items() if ranks == len(by_rank) == len(sums[place])]
    return max(free, key=lambda place: (sizes[place], -place), default=None)


def _can_move(x: Any) -> bool:
    if not isinstance(x, torch.Tensor):
        return False
    numbers = (x.is_floating_point() and x.element_size() > 1) or x.is_complex()
    return numbers and not x.is_sparse and x.numel() > 0 and _dimension(x) is not None


def _dimension(x: torch.Tensor) -> int | None:
    """The first dimension along which rows enough can move to reach whatever an answer depends on, else the longest."""
    longest = max(range(x.dim()), key=lambda d: (x.shape[d], -d), default=None)
    if longest is None or x.shape[longest] < 2:
        return None
    return next((d for d, n in enumerate(x.shape) if n >= 2 * PART), longest)


@functools.cache
def _rows(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(n / 8,) each: rows that are overwritten for a sum of zero, and numbers from which follows what they become."""
    here = torch.arange(0, max(1, n - n % PART), PART, device=device)
    return here, here * _SPREAD + 1
