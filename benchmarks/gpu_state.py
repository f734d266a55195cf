"""What the GPU benchmark has found so far: one small JSON file, written after every item, so that any call may end anywhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.errors import UserError
from pkb.files import write_atomic

FORMAT = 1
TRIES = 2  # an item that raised, or during which two calls ended, is given up

#: Seconds that an item of each step may take, until items of that step have been seen.
FIRST_GUESS = {"doctor": 60.0, "candidates": 40.0, "faults": 45.0, "references": 20.0}


@dataclass
class State:
    """items: "step/name" -> result, with "seconds". running: the item during which the last call ended, if one was.

    settings: what must not change between calls. machine: where and with what it was measured. batches: one entry for each
    call that judged candidates.
    """

    path: Path
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    running: str = ""
    batches: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any]) -> State:
        """The state of earlier calls, or a new one; raises UserError where the file is another's or of other settings."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, settings)
        state = cls.read(path)
        if state.settings != settings:
            changed = sorted(k for k in {*state.settings, *settings} if state.settings.get(k) != settings.get(k))
            raise UserError(f"{path} was begun with other settings ({', '.join(changed)}); name another --state, or keep them")
        if state.running:
            state.failed(state.running, "the call ended during this item")
        return state

    @classmethod
    def read(cls, path: Path) -> State:
        """The state as it is; raises UserError if there is none."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise UserError(f"{path} is of another version of this benchmark; name another --state")
            return cls(path, **data)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is no state of this benchmark: {error}") from None

    def save(self) -> None:
        """Write everything, atomically."""
        names = ("settings", "machine", "items", "tries", "running", "batches", "calls")
        data = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        write_atomic(self.path, json.dumps(data, indent=1).encode() + b"\n")

    def pending(self, keys: list[str]) -> list[str]:
        """Those that have no result yet, in order."""
        return [key for key in keys if key not in self.items]

    def begin(self, key: str) -> None:
        """Note that an item runs now."""
        self.running = key
        self.save()

    def done(self, key: str, result: dict[str, Any], seconds: float) -> None:
        """Keep an item's result."""
        self.items[key] = {**result, "seconds": round(seconds, 2)}
        self.running = ""
        self.save()

    def failed(self, key: str, reason: str) -> None:
        """Count a failed try; the last one is the item's result."""
        self.tries[key] = self.tries.get(key, 0) + 1
        if self.tries[key] >= TRIES:
            self.items[key] = {"error": reason}
        self.running = ""
        self.save()

    def guess(self, key: str) -> float:
        """Seconds that an item may take: half as long again as the longest of its step so far."""
        step = key.split("/")[0]
        seen = [v["seconds"] for k, v in self.items.items() if k.startswith(step + "/") and "seconds" in v]
        return 1.5 * max(seen) if len(seen) >= 2 else FIRST_GUESS[step]


def attempt(state: State, key: str, run: Callable[[], dict[str, Any]], left: Callable[[], float]) -> bool:
    """Run one item if it fits into what is left of this call (seconds); returns whether the call may go on.

    Whatever an item raises is kept as its failure: an unattended benchmark goes on with the next.
    """
    if left() < state.guess(key):
        return False
    state.begin(key)
    start = time.monotonic()
    try:
        result = run()
    except Exception as error:
        print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        state.failed(key, f"{type(error).__name__}: {error}"[:2000])
    else:
        state.done(key, result, time.monotonic() - start)
    return True
