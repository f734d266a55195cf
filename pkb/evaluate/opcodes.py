"""The instructions of a built library's device code: they tell which way it moves data (``pkb.analyze.mechanism``)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

#: Lies beside the library in the build cache.
FILE = "opcodes.txt"
_SECONDS = 60.0
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][\w.]*)")


def opcodes_of(library: Path) -> str:
    """The distinct SASS opcodes with their modifiers, one per line, e.g. ``LDG.E.STRONG.SYS``.

    Empty when there is no device code, or no ``cuobjdump`` (it comes with CUDA): what a binary tells is never required.
    """
    tool = shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")
    if tool is None:
        return ""
    try:
        said = subprocess.run([tool, "-sass", str(library)], capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "\n".join(sorted(set(_INSTRUCTION.findall(said.stdout))))
