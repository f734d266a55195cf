"""How much memory a group of processes holds, seen from outside of them. Used by a group's init, which ends a group that takes too much.

A control group would do this in the kernel, but needs rights over the host's hierarchy; this needs none, and works beside CUDA, whose
address space no limit may bound.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

PERIOD_S = 0.1  # between looks: at a few GB/s of page faults, a group overshoots by a few hundred MB


def held_bytes(pids: Iterable[int], mounts: Iterable[str] = (), exact: bool = False) -> int:
    """Memory that only these processes hold: anonymous pages, and shared ones once, mapped or in memory file systems.

    mounts: their private tmpfs mounts. exact: count pages that forked processes still share once, as far as they can be told apart;
    this takes milliseconds per process, so it is for when the quick count is too much.
    """
    anonymous, mapped, files = 0, 0, 0
    seen: set[tuple[int, int]] = set()
    for pid in pids:
        counted = _own_bytes(pid) if exact else None
        with contextlib.suppress(OSError, KeyError):  # gone, or a zombie without memory
            with open(f"/proc/{pid}/status") as file:
                rows = dict(line.split(":", 1) for line in file if line.startswith(("RssAnon", "RssShmem")))
            anonymous += counted if counted is not None else int(rows["RssAnon"].split()[0]) << 10
            mapped = max(mapped, int(rows["RssShmem"].split()[0]) << 10)
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = f"/proc/{pid}/fd/{name}"
                    if os.readlink(path).startswith("/memfd:"):
                        found = os.stat(path)
                        if (found.st_dev, found.st_ino) not in seen:
                            seen.add((found.st_dev, found.st_ino))
                            files += found.st_blocks * 512
    for mount in mounts:
        with contextlib.suppress(OSError):
            room = os.statvfs(mount)
            files += (room.f_blocks - room.f_bfree) * room.f_frsize
    return anonymous + max(mapped, files)


def _own_bytes(pid: int) -> int | None:
    """Anonymous memory of a process, pages shared with others by their share; None where that may not be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))
    except (OSError, StopIteration):
        return None


def available_bytes() -> int:
    """Memory that the machine could still give (MemAvailable)."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def kernel_oom_kills() -> int:
    """How often the kernel's own out-of-memory killer has struck on this machine since it started."""
    with open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
