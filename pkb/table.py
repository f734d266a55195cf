"""Tables that are too large to be drawn, sent or kept more than once: of most of their rows only the number matters.

A problem that fetches a few rows of a sharded table hands ``Table`` over in its place. Everything else about a draw stays small, and
the real tensor exists once per rank, on its device, where ``solution`` is called.

The rows between those that were drawn are a fixed pattern, which every process makes for itself. No seed crosses the border: ranks
that shared their seeds would know each other's rows without communicating. The pattern may be public, because nobody asks for its
rows; who compares a shard with it learns which rows may be asked for (by whatever rank) and as many others, at the price of reading
all of the shard, which takes longer than asking.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PATTERN_ROWS = 4096  # after these the pattern repeats
WORDS = 1 << 22  # of 64 bits, whose checksum is taken at a time
LARGE = 1 << 30  # bytes from which on memory is handed back to the device before more is asked for
_SPREAD = 0x5851F42D4C957F2D  # odd; by which sums of earlier words are multiplied


@dataclass(frozen=True, eq=False)
class Table:
    """A tensor of ``height`` rows: ``values`` (n, ...) at ``rows`` ((n,) int64, all different), the pattern elsewhere.

    An argument of ``solution`` itself, never inside another one, that no problem changes. Raises ValueError for parts that do not fit.
    """

    height: int
    rows: torch.Tensor
    values: torch.Tensor

    def __post_init__(self) -> None:
        if (
            self.rows.dtype != torch.int64
            or self.rows.dim() != 1
            or not self.values.dim()
            or not self.values.is_floating_point()
        ):
            raise ValueError("a table has a list of row numbers, and floating-point values")
        if self.height < 0 or self.rows.shape[0] != self.values.shape[0]:
            raise ValueError(f"{self.rows.shape[0]} row numbers with {self.values.shape[0]} rows of values")

    @property
    def shape(self) -> torch.Size:
        """The real tensor's."""
        return torch.Size([self.height, *self.values.shape[1:]])

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the real tensor."""
        return math.prod(self.shape) * self.values.element_size()

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Table:
        """The same with ``function`` applied to row numbers and values."""
        return Table(self.height, function(self.rows), function(self.values))

    def write(self, room: torch.Tensor) -> torch.Tensor:
        """Write the rows into ``room``, which holds the pattern, in stream order; returns the part that is the table."""
        room[self.rows.to(room.device)] = self.values.to(room.device)
        return room[: self.height]

    def erase(self, room: torch.Tensor) -> None:
        """Put the pattern back where the rows were written."""
        rows = self.rows.to(room.device)
        room[rows] = _pattern(self.shape[1:], self.dtype, room.device)[rows % PATTERN_ROWS]

    def tensor(self, device: Any = None) -> torch.Tensor:
        """The whole table in memory of its own, on ``device`` or where the values are."""
        return self.write(_blank([self], self.values.device if device is None else torch.device(device)))


def rooms(sets: Sequence[Sequence[Any]], device: str) -> dict[int, torch.Tensor]:
    """By position of the argument, memory for one table that is that of each of these input sets in turn, or of all together.

    In turn: each is written before its call and erased after it. Together: all are written; where two sets have drawn the same
    row, which is rare, the later one's is in all of them, so only who writes them in the same order has the same tables.
    """
    found: dict[int, list[Table]] = {}
    for inputs in sets:
        for i, x in enumerate(inputs):
            if isinstance(x, Table):
                found.setdefault(i, []).append(x)
    return {i: _blank(tables, torch.device(device)) for i, tables in found.items()}


def real(inputs: Sequence[Any], device: str, within: dict[int, torch.Tensor] | None = None) -> list[Any]:
    """The inputs with real tensors for tables, in memory of their own or in ``within`` (``rooms``)."""
    return [
        (x.tensor(device) if within is None else x.write(within[i])) if isinstance(x, Table) else x
        for i, x in enumerate(inputs)
    ]


def told(given: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Inputs after a call as they are handed over: of those that were given as tables, the checksum."""
    return [checksum(x) if isinstance(was, Table) else x for was, x in zip(given, inputs, strict=True)]


def checksum(x: torch.Tensor) -> torch.Tensor:
    """A sum over the bits of a contiguous tensor and their places; 0-d, int64, on its device, without a copy of the whole.

    It tells whether a tensor has been changed by mistake; two different tensors with the same sum can be constructed.
    """
    flat = x.detach().reshape(-1).view(torch.uint8)
    whole = flat.numel() - flat.numel() % 8
    words = flat[:whole].view(torch.int64)
    weights = torch.arange(1, 2 * min(WORDS, max(1, words.numel())), 2, device=x.device)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for start in range(0, words.numel(), WORDS):
        part = words[start : start + WORDS]
        total = total * _SPREAD + (part * weights[: part.numel()]).sum()
    return total * _SPREAD + (flat[whole:].to(torch.int64) * torch.arange(1, 1 + flat.numel() - whole, device=x.device)).sum()


def _blank(tables: Sequence[Table], device: torch.device) -> torch.Tensor:
    """Memory for the highest of these tables, filled with the pattern."""
    like = max(tables, key=lambda table: table.height)
    if device.type == "cuda" and like.nbytes >= LARGE:  # of another size, a table that is gone would still hold its memory
        torch.cuda.empty_cache()
    room = torch.empty(like.shape, dtype=like.dtype, device=device)
    done = min(PATTERN_ROWS, like.height)
    room[:done] = _pattern(like.shape[1:], like.dtype, device)[:done]
    while done < like.height:
        more = min(done, like.height - done)
        room[done : done + more] = room[:more]
        done += more
    return room


@functools.lru_cache(maxsize=4)
def _pattern(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(PATTERN_ROWS, *shape): normal numbers on multiples of 1/8 up to 31/8, which all dtypes hold exactly."""
    normal = torch.randn(PATTERN_ROWS, *shape, generator=torch.Generator().manual_seed(0))
    return ((normal * 8).round().clamp(-31, 31) / 8).to(device=device, dtype=dtype)


__all__ = ["Table", "checksum", "real", "rooms", "told"]
