"""Names of the files of one table, and which of them hold rows.

A table is a folder of immutable parts, ``part-NNNNNN.parquet``, and at most one journal, ``journal-NNNNNN[-rR].jsonl``: the
rows of the part that is still growing. When the journal is full it becomes that part, by rename, and is then deleted. A part
that is written anew (a journal continues it, or rows of it are superseded) gets the next revision, ``part-NNNNNN-rR.parquet``.

Two rules tell which files count, by name alone, so that a kill between any two steps neither loses nor doubles a row:
of every part number only the highest revision counts; a journal counts only while its part at that revision is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PART_ROWS = 1000
_NAME = re.compile(r"(part|journal)-(\d{6,})(?:-r(\d+))?\.(parquet|jsonl)")


@dataclass(frozen=True, order=True)
class Slot:
    """The number and revision that a part or a journal bears."""

    number: int
    revision: int = 0

    @property
    def part(self) -> str:
        return f"part-{self._text}.parquet"

    @property
    def journal(self) -> str:
        return f"journal-{self._text}.jsonl"

    @property
    def _text(self) -> str:
        return f"{self.number:06d}" + (f"-r{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Listing:
    """The files of a table at one moment: those that count, and those that a finished step left behind."""

    parts: tuple[Slot, ...]
    journals: tuple[Slot, ...]
    stale: tuple[str, ...]

    @property
    def last(self) -> Slot:
        """The highest slot in use; number 0 when there is none."""
        return max((*self.parts, *self.journals), default=Slot(0))


def slot_of(name: str) -> tuple[str, Slot] | None:
    """("part" or "journal", slot) of a file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return (match[1], Slot(int(match[2]), int(match[3] or 0))) if match else None


def listing(names: Iterable[str]) -> Listing:
    """Apply the two rules to the names in a table's folder."""
    parts: dict[int, Slot] = {}
    journals: list[Slot] = []
    stale: list[str] = []
    for name in names:
        found = slot_of(name)
        if found is None:
            continue
        kind, slot = found
        if kind == "journal":
            journals.append(slot)
            continue
        other = parts.get(slot.number)
        if other is not None:
            stale.append(min(other, slot).part)
        parts[slot.number] = slot if other is None else max(other, slot)
    live = [j for j in journals if j.number not in parts or parts[j.number].revision < j.revision]
    stale += [j.journal for j in journals if j not in live]
    return Listing(tuple(sorted(parts.values())), tuple(sorted(live)), tuple(stale))


def table_listing(folder: Path) -> Listing:
    """The listing of a folder; empty when there is none."""
    return listing(entry.name for entry in folder.iterdir()) if folder.is_dir() else Listing((), (), ())
