"""The instructions of a built library's device code: they tell which way it moves data (``pkb.analyze.mechanism``)."""

from __future__ import annotations

import importlib.util
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

    Empty when there is no device code, or no ``cuobjdump`` (it comes with CUDA, and with Triton): what a binary tells is never required.
    """
    tool = shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump") or _of_triton()
    if tool is None:
        return ""
    try:
        said = subprocess.run([tool, "-sass", str(library)], capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "\n".join(sorted(set(_INSTRUCTION.findall(said.stdout))))


def _of_triton() -> str | None:
    """The ``cuobjdump`` inside an installed Triton, which is not imported for it: images that only run kernels have no other."""
    found = importlib.util.find_spec("triton")
    folders = found.submodule_search_locations or () if found else ()
    return next((tool for folder in folders if (tool := shutil.which(f"{folder}/backends/nvidia/bin/cuobjdump"))), None)
