"""What a group of ranks prints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass

HEAD, TAIL = 64 << 10, 64 << 10
SETTLES_S = 0.002  # nothing comes out for so long: nothing is under way
PIPE_BYTES = 1 << 20  # as much as an unprivileged pipe may hold: who prints a lot waits less for the reader


@dataclass
class Log:
    """The beginning and the end of what a group printed; the middle is dropped, the group is never blocked."""

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    total: int = 0  # bytes read so far

    def drain(self, fd: int) -> None:
        """Read the pipe to its end."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with os.fdopen(fd, "rb", buffering=0) as stream:
            while chunk := stream.read(PIPE_BYTES):
                self.total += len(chunk)
                room = HEAD - len(self.head)
                self.head += chunk[:room]
                rest = self.tail + chunk[room:] if room < len(chunk) else self.tail
                self.dropped += max(0, len(rest) - TAIL)
                self.tail = rest[-TAIL:]

    def settled(self) -> int:
        """Bytes read, once those still under way have arrived."""
        seen, deadline = -1, time.monotonic() + 1.0
        while seen != self.total and time.monotonic() < deadline:
            seen = self.total
            time.sleep(SETTLES_S)
        return seen

    def text(self) -> str:
        """What is kept, as text."""
        middle = f"\n[... {self.dropped} bytes dropped ...]\n".encode() if self.dropped else b""
        return (self.head + middle + self.tail).decode(errors="replace")
