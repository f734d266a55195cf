"""The two groups of one judgement: how they are linked and asked, and whose fault it is when a rank fails."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pkb.config import Config
from pkb.evaluate import channels, diagnosis, handed
from pkb.evaluate.ranks import GroupFailed, RankGroup
from pkb.records import Job
from pkb.verdict import Verdict


class Ended(Exception):
    """The verdict is known."""

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


@dataclass
class Pair:
    """The reference ranks, which stay, and the candidate's, which live for one judgement.

    fields: of the record so far. seconds: spent, by stage. Questions to the candidate raise Ended, with the verdict, where a rank of
    it fails; what is the machine's fault raises whatever ``reference_failed`` makes of it.
    """

    job: Job
    config: Config
    secret: bytes
    reference: RankGroup
    take_candidate: Callable[[], RankGroup]
    reference_failed: Callable[[GroupFailed], Exception]
    before_timing: Callable[[], None] = lambda: None
    group: RankGroup | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """End the candidate group; nothing of it is left afterwards."""
        if self.group is not None:
            start = time.monotonic()
            self.group.kill()
            self.seconds["end"] = time.monotonic() - start
            self.group = None

    def _attach(self) -> None:
        """Give each candidate rank and its trusted counterpart the two ends of a private link."""
        assert self.group is not None
        pairs = [socket.socketpair() for _ in range(self.job.world_size)]
        with self._faults(Verdict.RUNTIME_ERROR), ExitStack() as ends:
            for _, theirs in pairs:
                ends.callback(theirs.close)
            self.reference.tell(do="attach")
            self.reference.send_links([ours for ours, _ in pairs])
            self.reference.replies(30.0)
            self.group.links += [ours for ours, _ in pairs]
            self.group.send_links([theirs for _, theirs in pairs])

    def _trusted(self, **command: Any) -> list[dict[str, Any]]:
        seconds = self.config.evaluation.limits.timing_seconds * 5
        try:
            return self.reference.ask(seconds, **command)
        except GroupFailed as error:
            if error.kind == "stuck":
                error.text += f" ({self.job.problem} at size {size_text(self.job)}); raise evaluation.limits.timing_seconds"
            raise self.reference_failed(error) from None

    def _judged(self) -> list[dict[str, Any]]:
        with self._faults(Verdict.RUNTIME_ERROR):
            return self.reference.replies(self.config.evaluation.limits.timing_seconds)

    def _candidate(self, seconds: float, on_raise: Verdict, per_rank: Any = None, **command: Any) -> list[dict[str, Any]]:
        assert self.group is not None
        with self._faults(on_raise):
            return self.group.ask(seconds, per_rank, **command)

    def _counters(self) -> channels.Counters:
        assert self.group is not None
        with self._faults(Verdict.RUNTIME_ERROR):
            return self.group.counters()

    @contextmanager
    def _faults(self, on_raise: Verdict) -> Iterator[None]:
        """Turn a failed rank into the candidate's verdict or, where the reference ranks are at fault, into a HarnessError."""
        try:
            yield
        except GroupFailed as error:
            if error.role == "reference" and error.kind not in ("link", "long", "stuck"):
                raise self.reference_failed(error) from None
            if loss := self.reference.casualty():
                raise self.reference_failed(loss) from None
            group, extra = self.group, dict(self.fields.get("extra", {}))
            casualty = group.casualty(1.0 if error.kind == "link" else 0.0) if group is not None else None
            if group is not None and error.kind == "stuck" and casualty is None:
                waiting = sorted(group.awaited)
                extra["diagnosis"] = diagnosis.of_deadlock(group.stacks(), waiting, self.job.world_size, self.job.source)
            victim = casualty if error.role == "reference" else error
            if group is not None and victim is not None and victim.kind == "died":
                stack = handed.last_stack(group.folders, victim.rank)
                if crash := diagnosis.of_crash(stack, victim.rank, self.job.source):
                    extra["diagnosis"] = crash
            self.close()  # the links are down now: reference ranks that wait for an answer say so
            owing = self._drain(error)
            if error.role == "reference":
                error = casualty or owing
            if group is not None:
                extra["log"] = group.log.text()[-4000:]
            if error.trace:
                extra["traceback"] = error.trace
            if _killed(error) and (group is None or not group.memory_ran_out()):
                extra["killed"] = True  # by itself, or by somebody on this machine: a sweep judges it once more
            self.fields["extra"] = extra
            raise Ended(_blame(error, group, on_raise), _detail(error)) from None

    def _drain(self, error: GroupFailed) -> GroupFailed:
        """Wait until the reference ranks have given up what was cut off; returns why the counterpart is to blame.

        Raises HarnessError if a reference rank does not answer, or was not waiting for its counterpart after all.
        """
        try:
            replies = self.reference.drain()
        except GroupFailed as failure:
            raise self.reference_failed(error if error.role == "reference" else failure) from None
        if error.role != "reference" or error.kind != "stuck":
            return error
        if not any(r.get("failed") == "link" for r in replies):
            raise self.reference_failed(error) from None
        return GroupFailed("link", error.rank, "half an answer", role="reference")


def size_text(job: Job) -> str:
    """A size as on the command line: the preset, then single dimensions."""
    return job.preset + "".join(f" {k}={v}" for k, v in sorted(job.dims.items()))


def _killed(error: GroupFailed) -> bool:
    """Whether a rank ended by SIGKILL, or with its init, so that nobody can tell how (status -1)."""
    return error.kind == "died" and error.status in (signal.SIGKILL, -1)


def _blame(error: GroupFailed, group: RankGroup | None, on_raise: Verdict) -> Verdict:
    """The verdict on a candidate whose rank failed, by what the kernel and the clock say before what the rank says."""
    if error.kind == "stuck":
        return Verdict.DEADLOCK
    if error.kind == "died":
        return (
            Verdict.OUT_OF_MEMORY if _killed(error) and group is not None and group.memory_ran_out() else Verdict.RUNTIME_ERROR
        )
    known = {
        "compile": Verdict.COMPILE_ERROR,
        "memory": Verdict.OUT_OF_MEMORY,
        "long": Verdict.WRONG_STRUCTURE,
        "link": Verdict.TAMPERING,
        "lost": Verdict.TAMPERING,
    }
    return known.get(error.kind, on_raise)


def _detail(error: GroupFailed) -> str:
    if error.kind in ("link", "lost"):
        return f"rule protocol: rank {error.rank} handed over what is no answer ({error.text})"
    if error.kind == "long":
        return f"rank {error.rank} handed over far more than was asked for: {error.text}"
    return f"rank {error.rank}: {error.text}" if error.kind in ("raise", "compile", "memory") else error.text
