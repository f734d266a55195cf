"""Keys stay out of everything that is kept."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pkb.generate.models import Model

_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_SHORTEST = 8


class Redactor:
    """Replaces the values of keys, wherever they come back: providers echo them in errors, and so could an answer."""

    def __init__(self, models: Sequence[Model]) -> None:
        named = {m.key_env: m.key() or "" for m in models if m.key_env}
        others = {name: value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
        pairs = [(value, name) for name, value in {**others, **named}.items() if len(value) >= _SHORTEST]
        self._pairs = sorted(pairs, key=lambda pair: -len(pair[0]))  # a key that contains another goes first

    @property
    def values(self) -> list[str]:
        return [value for value, _ in self._pairs]

    def __call__(self, text: str) -> str:
        for value, name in self._pairs:
            if value in text:
                text = text.replace(value, f"[{name}]")
        return text

    def mapping(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The same JSON-like data without keys."""
        text = json.dumps(data, default=str)
        return dict(data) if not any(value in text for value in self.values) else json.loads(self(text))
