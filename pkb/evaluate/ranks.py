"""The parent's hand on rank processes: start a group, ask it, watch it, end it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pkb.errors import HarnessError
from pkb.evaluate import channels, handed, watch, wire
from pkb.evaluate.log import Log
from pkb.evaluate.sandbox import Policy

#: What rank processes may inherit; everything else (keys, credentials, paths of the user) stays out.
ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CPATH",
    "CXX",
    "CC",
    "TORCH_CUDA_ARCH_LIST",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES",
    "NVSHMEM_DISABLE_NVLS",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "PKB_OWNER",  # the actor that all this belongs to, so that its successor finds what it left
)


class GroupFailed(Exception):
    """A rank failed. kind: raise, compile, memory (it said so), died (status), stuck (deadline), lost (protocol broken).

    Of a reference rank also: link, long (its counterpart closed the link between them or sent no answer; or far too much).
    """

    def __init__(self, kind: str, rank: int, text: str, trace: str = "", status: int = 0, role: str = "candidate") -> None:
        super().__init__(text)
        self.kind, self.rank, self.text, self.trace, self.status, self.role = kind, rank, text, trace, status, role


class Zygote:
    """The process that forks groups (``pkb.evaluate.zygote``)."""

    def __init__(self, extra_environment: Mapping[str, str], deadline_s: float) -> None:
        ours, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k in ENVIRONMENT}
        environment.update(extra_environment, PYTHONPATH=os.fspath(Path(__file__).resolve().parents[2]), OMP_NUM_THREADS="1")
        environment.setdefault("PYTHONDONTWRITEBYTECODE", "1")
        environment.update(PYTORCH_NVML_BASED_CUDA_CHECK="1", OPENBLAS_NUM_THREADS="1")  # no CUDA and no threads before a fork
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pkb.evaluate.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.control = ours
        self.control.settimeout(deadline_s)
        try:
            wire.receive_message(self.control)
        except (OSError, wire.WireError) as error:
            self.close()
            raise HarnessError(f"the process that starts ranks did not come up: {error}") from None

    def group(self, request: Mapping[str, Any], deadline_s: float) -> RankGroup:
        """Fork a group. request: role, world_size, devices, backend, environment, sandbox (a Policy's fields)."""
        world_size = int(request["world_size"])
        pairs = [socket.socketpair() for _ in range(world_size + 1)]
        log_read, log_write = os.pipe()
        fds = [pairs[0][1].fileno(), log_write, *(p[1].fileno() for p in pairs[1:])]
        wire.send_message(self.control, **request)
        socket.send_fds(self.control, [b"F"], fds)
        for _, theirs in pairs:
            theirs.close()
        os.close(log_write)
        controls = [p[0] for p in pairs[1:]]
        return RankGroup(controls, pairs[0][0], log_read, deadline_s, str(request["role"]), str(request["sandbox"]["scratch"]))

    def close(self) -> None:
        """End the zygote and, through the kernel, every group that it forked."""
        self.control.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class RankGroup:
    """W rank processes and their init. Every wait has a deadline; the first failure of any rank ends the wait."""

    def __init__(
        self, controls: list[socket.socket], group: socket.socket, log_fd: int, deadline_s: float, role: str, scratch: str
    ) -> None:
        self.controls, self.group, self.role, self.scratch = controls, group, role, scratch
        self.world_size = len(controls)
        self.log = Log()
        self._drain = threading.Thread(target=self.log.drain, args=(log_fd,), daemon=True)
        self._drain.start()
        self.exits: dict[int, int] = {}
        self.level = "none"
        self.pid = 0
        self.ended = False
        self.awaited: set[int] = set()  # ranks that owe an answer
        self.held_bytes = 0  # of memory, when init found it to be too much
        self._oom_kills = watch.kernel_oom_kills()
        self._start_deadline = time.monotonic() + deadline_s
        self.links: list[socket.socket] = []

    def started(self) -> None:
        """Wait until init and the ranks exist. Raises HarnessError."""
        self.group.settimeout(max(0.1, self._start_deadline - time.monotonic()))
        try:
            seen: dict[str, Any] = {}
            while not {"pid", "ranks"} <= seen.keys():
                seen.update(wire.receive_message(self.group))
                if "failed" in seen:
                    raise HarnessError(f"a rank group could not start: {seen['failed']}")
        except (OSError, wire.WireError) as error:
            raise HarnessError(f"a rank group could not start: {error}") from None
        self.pid, self.level = seen["pid"], seen["level"]

    def meet(self) -> None:
        """Bring the ranks together in a process group. Raises HarnessError (no candidate code has run yet)."""
        try:
            port = self._receive(0, self._start_deadline)["port"]
            self._send_all({"port": port})
            for rank in range(self.world_size):
                self._receive(rank, self._start_deadline)
        except (GroupFailed, KeyError, OSError) as error:
            raise HarnessError(f"{self.role} ranks did not meet: {error}; {self.log.text()[-800:]}") from None

    def send_links(self, links: Sequence[socket.socket]) -> None:
        """Give each rank its end of a link (before anything else, or after a message that announces it)."""
        for rank, (control, link) in enumerate(zip(self.controls, links, strict=True)):
            try:
                socket.send_fds(control, [b"L"], [link.fileno()])
            except OSError:
                self._raise_death(rank)

    def place(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write libraries where the ranks can load them; returns key -> path."""
        paths = {key: os.path.join(self.scratch, f"lib-{key}.so") for key in files}
        for key, path in paths.items():
            Path(path).write_bytes(files[key])
            os.chmod(path, 0o755)
        return paths

    def drain(self) -> list[dict[str, Any]]:
        """Take the answers of ranks whose work was cut off, so that the next question is answered first; raises GroupFailed."""
        deadline = time.monotonic() + 10.0
        return [self._receive(rank, deadline) for rank in sorted(self.awaited)]

    def casualty(self, patience_s: float = 0.0) -> GroupFailed | None:
        """The end of a rank, where one has ended (or does within ``patience_s``) though nobody asked for it; else None."""
        try:
            while not self.exits and select.select([self.group], [], [], patience_s)[0]:
                self._notice()
        except GroupFailed as error:
            return error
        return None

    def ask(
        self, deadline_s: float, per_rank: Callable[[int], Mapping[str, Any]] | None = None, **command: Any
    ) -> list[dict[str, Any]]:
        """Send a command to every rank and return their replies. Raises GroupFailed."""
        self.tell(per_rank, **command)
        return self.replies(deadline_s)

    def tell(self, per_rank: Callable[[int], Mapping[str, Any]] | None = None, **command: Any) -> None:
        """Send a command to every rank without waiting."""
        self.awaited = set(range(self.world_size))
        for rank, control in enumerate(self.controls):
            control.settimeout(30.0)
            try:
                wire.send_message(control, **command, **(per_rank(rank) if per_rank else {}))
            except OSError:
                self._raise_death(rank)

    def replies(self, deadline_s: float, expect: str = "") -> list[dict[str, Any]]:
        """One message from every rank; ``expect``: a key that must be in it."""
        deadline = time.monotonic() + deadline_s
        replies: dict[int, dict[str, Any]] = {}
        while len(replies) < self.world_size:
            waiting = {self.controls[r]: r for r in range(self.world_size) if r not in replies}
            timeout = deadline - time.monotonic()
            readable = select.select([*waiting, self.group], [], [], max(0.0, timeout))[0]
            if not readable and timeout <= 0:
                stuck = sorted(waiting.values())
                raise self._failure(
                    "stuck", stuck[0], f"no answer from rank {', '.join(map(str, stuck))} within {deadline_s:.3g} s"
                )
            if self.group in readable:
                self._notice()
            for control, rank in waiting.items():
                if control in readable:
                    reply = self._receive(rank, deadline)
                    if "failed" in reply:
                        raise self._failure(
                            str(reply["failed"]),
                            rank,
                            str(reply.get("error", reply["failed"])),
                            str(reply.get("traceback", "")),
                        )
                    if expect and expect not in reply:
                        raise self._failure("lost", rank, f"rank {rank} broke the protocol")
                    replies[rank] = reply
        if expect == "armed":
            self.awaited = set(range(self.world_size))
        return [replies[r] for r in range(self.world_size)]

    def go(self, deadline_s: float, keys: Sequence[Sequence[int]] = ()) -> tuple[int, list[dict[str, Any]]]:
        """Release ranks that wait at the start of a block; returns (when, on the parent's clock in ns, and their replies).

        keys: by rank, those of veiled input sets.
        """
        self.replies(deadline_s, expect="armed")
        start = time.perf_counter_ns()
        self._send_all({"go": True}, **({"keys": keys} if keys else {}))
        return start, self.replies(deadline_s, expect="ns")

    def step(self, deadline_s: float, keys: Sequence[Sequence[int]]) -> tuple[int, list[list[Any]], list[dict[str, Any]]]:
        """Give ranks their keys (by rank) one after the other, each for what they say of the call before.

        Returns (when they had the first, on the parent's clock in ns; by rank, what was said for each further key; their replies).
        """
        said: list[list[Any]] = [[] for _ in range(self.world_size)]
        start = 0
        for i, key in enumerate(zip(*keys, strict=True)):
            armed = self.replies(deadline_s, expect="armed")
            for of_rank, reply in zip(said, armed if i else [], strict=bool(i)):
                of_rank.append(reply.get("sum"))
            start = start or time.perf_counter_ns()
            self._send_all({}, key=key)
        return start, said, self.replies(deadline_s, expect="ns")

    def signal(self, number: int) -> None:
        """Signal every process of the group (SIGSTOP, SIGCONT) and wait until it is done."""
        try:
            wire.send_message(self.group, signal=number)
            self.group.settimeout(10.0)
            while "signalled" not in (message := wire.receive_message(self.group)):
                self._note(message)
        except TimeoutError:
            raise HarnessError(f"the init of a {self.role} group did not answer within 10 s") from None
        except (OSError, wire.WireError):
            raise self._failure("died", 0, "the group's init is gone", status=signal.SIGKILL) from None

    def stacks(self) -> dict[int, str]:
        """The Python stacks of the ranks that owe an answer, as far as they can be had; the group is to be ended afterwards."""
        with contextlib.suppress(GroupFailed, HarnessError):
            self.signal(handed.STACK_SIGNAL)
        return handed.stacks(self.folders, self.awaited)

    @property
    def folders(self) -> str:
        """Where the ranks' folders can be read from here, while the group lives."""
        within = f"/proc/{self.pid}/root{os.path.realpath(self.scratch)}"
        return within if self.level == "namespaces" and os.path.isdir(within) else self.scratch

    def kill(self, deadline_s: float = 20.0) -> None:
        """End every process of the group and wait until none is left. Raises HarnessError if the kernel cannot."""
        if self.ended:
            return
        self.ended = True
        for link in self.links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.group.shutdown(socket.SHUT_WR)
        self.group.settimeout(deadline_s)
        try:
            while self.group.recv(1 << 16):
                pass
        except TimeoutError:
            raise HarnessError(
                f"processes of a {self.role} group outlived SIGKILL for {deadline_s:g} s; the node needs attention"
            ) from None
        except OSError:
            pass
        finally:
            for sock in [self.group, *self.controls]:
                sock.close()
        self._drain.join(2.0)
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def counters(self) -> channels.Counters:
        """What the group has moved through the kernel so far; empty where it has no private network. Raises GroupFailed."""
        if self.level != "namespaces":
            return channels.Counters()
        try:
            return channels.counters(self.pid, self.log.settled())
        except OSError:
            raise self._failure("died", 0, "the group's init is gone", status=signal.SIGKILL) from None

    def memory_ran_out(self) -> bool:
        """Whether the group was ended for its memory: by its init, which watches it, or by the kernel since the group began."""
        return self.held_bytes > 0 or watch.kernel_oom_kills() > self._oom_kills

    def _failure(self, kind: str, rank: int, text: str, trace: str = "", status: int = 0) -> GroupFailed:
        return GroupFailed(kind, rank, text, trace, status, self.role)

    def _receive(self, rank: int, deadline: float) -> dict[str, Any]:
        control = self.controls[rank]
        self.awaited.discard(rank)
        try:
            return wire.receive_message(control, deadline=max(deadline, time.monotonic() + 0.05))
        except TimeoutError:
            raise self._failure("stuck", rank, f"no answer from rank {rank}") from None
        except wire.WireError as error:
            if "closed" in str(error):
                self._raise_death(rank)
            raise self._failure("lost", rank, f"rank {rank}: {error}") from None
        except OSError:
            self._raise_death(rank)
            raise AssertionError from None

    def _send_all(self, message: Mapping[str, Any], **by_rank: Sequence[Any]) -> None:
        for rank, control in enumerate(self.controls):
            try:
                wire.send_message(control, **message, **{name: of_rank[rank] for name, of_rank in by_rank.items()})
            except OSError:
                self._raise_death(rank)

    def _notice(self) -> None:
        """Read one message of init; a rank that has ended while an answer is awaited is a failure."""
        self.group.settimeout(10.0)
        try:
            self._note(wire.receive_message(self.group))
        except (OSError, wire.WireError):
            raise self._failure("died", 0, "the group's init is gone", status=signal.SIGKILL) from None
        if self.exits:
            self._raise_death(next(iter(self.exits)))

    def _note(self, message: Mapping[str, Any]) -> None:
        if "memory" in message:
            self.held_bytes = int(message["memory"])
        if "exit" in message:
            self.exits[int(message["exit"])] = int(message["status"])

    def _raise_death(self, rank: int) -> None:
        """Raise GroupFailed with the kernel's word on why ``rank`` ended (waits for it briefly)."""
        deadline = time.monotonic() + 5.0
        while rank not in self.exits and time.monotonic() < deadline:
            self.group.settimeout(max(0.05, deadline - time.monotonic()))
            try:
                self._note(wire.receive_message(self.group))
            except (OSError, wire.WireError):
                break
        status = self.exits.get(rank, -1)
        raise self._failure("died", rank, f"rank {rank} {describe(status)}", status=status)


def describe(status: int) -> str:
    """A wait status in words."""
    if status == -1:
        return "is gone"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was ended by {_SIGNALS.get(number, f'signal {number}')}"
    return f"exited with code {os.waitstatus_to_exitcode(status)} before the end"


_SIGNALS = {int(s): s.name for s in signal.Signals}


def request_of(
    role: str, world_size: int, devices: Sequence[str], backend: str, environment: Mapping[str, str], policy: Policy
) -> dict[str, Any]:
    """The zygote's request for a group."""
    return {
        "role": role,
        "world_size": world_size,
        "devices": list(devices),
        "backend": backend,
        "environment": dict(environment),
        "sandbox": asdict(policy),
    }
