"""Which GPUs of a machine form groups, by how they are linked."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Sequence

#: What ``nvidia-smi topo -m`` calls links, from crossing sockets to one PCIe bridge; NVLink (NV + number of links) is above all.
_PCIE = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_NVLINK = 100


def arranged(wanted: Sequence[Sequence[int] | None]) -> list[Sequence[int] | None]:
    """As many groups of the same size, chosen by this machine's links; as they were when there is one, or nobody can tell."""
    first = wanted[0]
    matrix = links() if len(wanted) > 1 and first is not None else None
    if matrix is None or first is None:
        return list(wanted)
    found = groups(matrix, len(first))
    return list(found[: len(wanted)]) if len(found) >= len(wanted) else list(wanted)


def links() -> list[list[int]] | None:
    """How well each GPU of this machine is linked to each other one; None when nobody can tell."""
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout)


def parse(text: str) -> list[list[int]] | None:
    """The matrix of ``nvidia-smi topo -m``; None when the text holds none."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [re.split(r"\s+", line.strip()) for line in plain.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if "X" in row]  # the heading has none
    count = len(rows)
    if not count or any(len(row) <= count for row in rows):
        return None
    return [[_strength(cell) for cell in row[1 : count + 1]] for row in rows]


def groups(matrix: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """Disjoint groups of ``size`` GPUs, each as well linked as can be: the lowest free GPU chooses its best company.

    The worst link within a group counts first, then the sum of all, then low numbers.
    """
    free = list(range(len(matrix)))
    found: list[tuple[int, ...]] = []
    while len(free) >= size:
        first, *others = free
        candidates = ((first, *rest) for rest in itertools.combinations(others, size - 1))
        best = max(candidates, key=lambda group: (_quality(matrix, group), tuple(-g for g in group)))
        found.append(best)
        free = [g for g in free if g not in best]
    return found


def _quality(matrix: Sequence[Sequence[int]], group: Sequence[int]) -> tuple[int, int]:
    strengths = [matrix[a][b] for a, b in itertools.combinations(group, 2)]
    return min(strengths, default=0), sum(strengths)


def _strength(cell: str) -> int:
    if match := re.fullmatch(r"NV(\d+)", cell):
        return _NVLINK + int(match[1])
    return _PCIE.get(cell, 0)
