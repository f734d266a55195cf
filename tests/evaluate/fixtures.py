"""Candidates kept as files under tests/candidates, with what is expected of them in their first lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "candidates"


@dataclass(frozen=True)
class Fixture:
    """A candidate. head: the ``# key: value`` lines at its top."""

    name: str
    source: str
    head: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        """Configuration that this candidate is judged under."""
        short = ["evaluation.timing.enabled=true", "evaluation.timing.warmup=50", "evaluation.timing.blocks=6"]
        timing = short if self.head.get("timing") == "yes" else []
        return [*timing, *self.head.get("limits", "").split()]


def load(folder: str) -> list[Fixture]:
    """All fixtures below a folder, by name."""
    return [_read(path, folder) for path in sorted((ROOT / folder).rglob("*.py"))]


def _read(path: Path, folder: str) -> Fixture:
    text, head = _whole(path)
    return Fixture(str(path.relative_to(ROOT / folder).with_suffix("")), text, head)


def _whole(path: Path) -> tuple[str, dict[str, str]]:
    """The text with what it includes, which may include something itself, before it; and its own head."""
    text = path.read_text(encoding="utf-8")
    head = dict(m.groups() for line in text.splitlines()[:8] if (m := re.fullmatch(r"# (\w+): (.+)", line)))
    if "include" in head:
        text = f"{_whole(ROOT / (head['include'] + '.py'))[0]}\n{text}"
    return text, head
