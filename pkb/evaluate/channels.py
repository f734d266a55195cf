"""What a group of processes moves through the kernel, read from /proc outside of it: nothing that a candidate says or patches counts.

Shared memory is what a kernel is asked to use and is not counted. Everything else by which ranks could exchange data passes through
the kernel: the private network (loopback byte counter, and connections that belong to no process group), files and pipes (bytes
written), Unix sockets (whose bytes nothing counts, so their existence does). What the kernel could carry uncounted is denied by the
system-call filter.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from types import TracebackType

SAMPLE_S = 0.0005  # between looks at the sockets: a call that opens some has them open for longer
GENTLE_S = 0.01  # the same while something is timed
SYMM = "@pkb-symm-"  # the rendezvous of pkb.symm hands descriptors over through such sockets, then closes them


@dataclass(frozen=True)
class Counters:
    """Bytes so far: on the group's loopback interface, and written to files and pipes. None where that cannot be read.

    printed: how much of what was written came out at the parent's end of the group's log.
    """

    loopback: int | None = None
    written: int | None = None
    printed: int = 0


@dataclass(frozen=True)
class Moved:
    """Between two looks, per rank and call: bytes on the network, and in files and pipes other than the log; sockets in use.

    meetings: Unix sockets that came and went as those of a rendezvous do. connections: network sockets beyond those there were
    before the candidate was loaded.
    """

    network: float | None
    written: float | None
    sockets: int = 0
    meetings: int = 0
    connections: int = 0


def counters(init: int, printed: int) -> Counters:
    """The counters of the group whose init has this pid. Raises OSError when it is gone."""
    return Counters(_loopback(init), _written(init), printed)


def between(before: Counters, after: Counters, calls: int, ranks: int, watch: SocketWatch | None = None) -> Moved:
    """What ``calls`` calls on ``ranks`` ranks moved, each; ``watch`` was on meanwhile (None: no private network to watch)."""

    def each(a: int | None, b: int | None, less: int = 0) -> float | None:
        return None if a is None or b is None else (b - a - less) / max(1, calls) / ranks

    moved = each(before.loopback, after.loopback), each(before.written, after.written, after.printed - before.printed)
    return Moved(*moved, watch.count, watch.meetings, watch.connections) if watch else Moved(*moved)


def connections(init: int) -> int:
    """Network sockets of the group that are connected or need no connection."""
    found = 0
    for kind, established in (("tcp", True), ("tcp6", True), ("udp", False), ("udp6", False), ("raw", False), ("raw6", False)):
        with contextlib.suppress(OSError), open(f"/proc/{init}/net/{kind}") as file:
            found += sum(1 for line in list(file)[1:] if not established or line.split()[3] == "01")
    return found


@dataclass
class SocketWatch:
    """Within its context, looks again and again at the Unix sockets of a group's private network, and at its end at the others.

    count: Unix sockets that were there from beginning to end, or came and went unlike those of a rendezvous of pkb.symm; meetings:
    those that came and went alike. connected_only: leave out sockets that are not connected (CUDA and NCCL keep such).
    connections: network sockets at the end, beyond the ``usual`` number.
    """

    init: int
    connected_only: bool = False
    period_s: float = SAMPLE_S
    usual: int = 0
    count: int = 0
    meetings: int = 0
    connections: int = 0
    _seen: dict[str, str] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> SocketWatch:
        self._first = self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        stayed = self._first.keys() & self._look().keys()
        passing = {inode: path for inode, path in self._seen.items() if inode not in self._first}
        meeting = any(path.startswith(SYMM) for path in passing.values())
        self.count = len(stayed) + (0 if meeting else len(passing))
        self.meetings = len(passing) if meeting else 0
        self.connections = connections(self.init) - self.usual

    def _watch(self) -> None:
        while not self._stop.wait(self.period_s):
            self._seen.update(self._look())

    def _look(self) -> dict[str, str]:
        """Inode -> path of each socket."""
        try:
            with open(f"/proc/{self.init}/net/unix") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            return {}
        wanted = [r for r in rows if len(r) >= 7 and (not self.connected_only or r[5] == "03")]
        return {r[6]: r[7] if len(r) > 7 else "" for r in wanted}


def _loopback(init: int) -> int | None:
    with open(f"/proc/{init}/net/dev") as file:
        for line in file:
            if line.strip().startswith("lo:"):
                return int(line.split(":")[1].split()[8])
    return None


def _written(init: int) -> int | None:
    """Bytes that write and its kin have taken from the group's processes; None unless all of them may be read."""
    total, pids = 0, _descendants(init)
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("wchar:"))
        except FileNotFoundError:  # has just ended
            continue
        except (OSError, StopIteration):
            return None
    return total if pids else None


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found[1:]
