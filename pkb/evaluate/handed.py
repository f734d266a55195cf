"""Files that candidate ranks leave for the harness: their names, and how to read what untrusted code may have put in their place."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable

#: Candidate ranks answer this signal by writing their Python stacks to the file STACKS in their own folder; there too goes the last
#: stack of one that crashes.
STACK_SIGNAL = signal.SIGUSR2
STACKS = "stacks.txt"
STACK_BYTES, STACK_SECONDS = 64 << 10, 2.0


def read(scratch: str, rank: int, name: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file in a rank's own folder, empty if there is none.

    The folder is the candidate's to write to, so no link is followed and nothing but a plain file is read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(os.path.join(scratch, f"rank{rank}"), flags | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return b""
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return b""
        return opened.enter_context(os.fdopen(descriptor, "rb")).read(limit)


def last_stack(scratch: str, rank: int) -> str:
    """What a rank that is gone wrote about where it stood."""
    return read(scratch, rank, STACKS, STACK_BYTES).decode(errors="replace")


def stacks(scratch: str, ranks: Iterable[int]) -> dict[int, str]:
    """What these ranks have written about where they stand, after the signal, as far as they do so in time."""
    ranks = sorted(ranks)
    found: dict[int, str] = {}
    deadline = time.monotonic() + STACK_SECONDS
    while time.monotonic() < deadline:
        before, found = found, {r: read(scratch, r, STACKS, STACK_BYTES).decode(errors="replace") for r in ranks}
        if found == before and all(found.values()):
            break
        time.sleep(0.05)  # nothing announces that another process has finished writing
    return {rank: text for rank, text in found.items() if text}
