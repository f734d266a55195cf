"""Configuration where omegaconf is missing, as on GPU images: overrides on an empty file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb.errors import UserError


def merge(dotlist: Sequence[str], path: Path) -> dict[str, Any]:
    """``a.b=value`` overrides as nested plain data. Raises UserError when the file says anything itself."""
    text = [
        line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    if text:
        raise UserError(f"reading {path.name} needs omegaconf, which this Python does not have; install it")
    data: dict[str, Any] = {}
    for item in dotlist:
        key, raw = item.split("=", 1)
        node = data
        *parents, leaf = key.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = _value(raw)
    return data


def _value(raw: str) -> Any:
    if raw.startswith("[") and raw.endswith("]"):
        return [_value(x.strip()) for x in raw[1:-1].split(",") if x.strip()]
    if raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    for kind in (int, float):
        try:
            return kind(raw)
        except ValueError:
            continue
    return raw.strip("'\"")
