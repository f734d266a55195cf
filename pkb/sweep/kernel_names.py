"""Which problem a file of an existing kernel is for, by the name that it has elsewhere (``conf/kernel_names.yaml``)."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import Any

from pkb import problem as known
from pkb.config import conf_root

#: 1_allreduce_cuda.py, 055_ring_attention_triton_v2.py, gemm_allscatter.py, 7.py
_FILE = re.compile(r"(?:(?P<number>\d{1,3})(?:_|(?=\.py$)))?(?P<name>\w*)\.py")
_VERSION = re.compile(r"_(?:v|attempt|sample|try)_?\d+$|_\d+$")


@dataclass(frozen=True)
class Match:
    """problem: NNN_stem, or None with the reason in one line."""

    problem: str | None
    reason: str = ""


def match(file: str) -> Match:
    """The problem of a file name: by number and name where they say more together, else by name, by number only without a name."""
    parts = _FILE.fullmatch(file)
    if not parts:
        return Match(None, "not named like NN_name_backend.py")
    number, name = parts["number"], parts["name"]
    if not name:
        return _numbered(number)
    table = _table()
    shortened = _shortened(name, tuple(table["backends"]))
    for stem in shortened:
        if number and (found := table["numbered"].get(f"{int(number)}_{stem}")):
            return Match(found)
    by_name = {**table["renamed"], **{n.split("_", 1)[1]: n for n in known.names()}}
    folded = {stem.lower(): n for stem, n in by_name.items()}
    for stem in shortened:
        if found := by_name.get(stem) or folded.get(stem.lower()):
            return Match(found)
    near = difflib.get_close_matches(shortened[-1], by_name, 1, 0.6)
    hint = f"; the nearest is {by_name[near[0]]}" if near else ""
    return Match(None, f"no problem is called '{shortened[-1]}'{hint}")


def _numbered(number: str) -> Match:
    found = next((n for n in known.names() if int(n[:3]) == int(number)), None)
    return Match(found) if found else Match(None, f"there is no problem {int(number)}")


def _shortened(name: str, backends: tuple[str, ...]) -> list[str]:
    """The name as it is, and without a version, a backend, and both, longest first: a problem's own name may end like one."""
    found = [name]
    for _ in range(3):
        shorter = _VERSION.sub("", found[-1])
        for backend in backends:
            shorter = shorter.removesuffix(f"_{backend}")
        if shorter == found[-1]:
            break
        found.append(shorter)
    return found


@functools.cache
def _table() -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load((conf_root() / "kernel_names.yaml").read_text(encoding="utf-8")))
