"""The texts of ``conf/prompts/feedback``."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from typing import Any

from pkb.config import conf_root


def say(file: str, key: str, **values: Any) -> str:
    """One text with its places filled in. What is filled in is not looked at again: code and compilers' words hold dollar signs."""
    return string.Template(_texts(file)[key]).substitute(values).rstrip("\n")


@functools.cache
def _texts(file: str) -> Mapping[str, str]:
    import yaml

    found: Mapping[str, str] = yaml.safe_load(
        (conf_root() / "prompts" / "feedback" / f"{file}.yaml").read_text(encoding="utf-8")
    )
    return found
