"""One block of calls on either side: run it, bracket it with the parent's clock, take what ranks say of it (docs/timing.md)."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pkb.evaluate.ranks import GroupFailed, RankGroup


@dataclass
class Blocks:
    """Both groups, and how to run one block on either."""

    reference: RankGroup
    candidate: RankGroup
    deadline_s: float
    changed: list[int]  # inputs that the problem changes, by position
    veils: list[list[int]] = field(default_factory=list)  # keys of the sets, by rank, where they are veiled
    copy: bool = False  # outputs are copied in stream order
    ran: int = 0  # calls of the candidate so far

    def run(self, side: str, first: int, count: int, renew: bool, commit: bool = False, place: int | None = None) -> Block:
        """One block of ``count`` calls.

        commit: have every rank say the sums of all its answers at once, on the parent's clock. place: the leaf of a call's inputs
        that the call before changes; on the reference's side this times that change alone.
        """
        group = self.reference if side == "reference" else self.candidate
        command: dict[str, Any] = {"do": "block", "first": first, "count": count, "renew": renew, "copy": self.copy}
        if place is not None:
            chained = {"place": place, "changed": self.changed}
            command = {"do": "between", **chained} if side == "reference" else {**command, **chained}
        sums: list[list[int]] = []
        with self._alone(side):
            group.tell(**command)
            start, replies = group.go(self.deadline_s, [of_rank[:count] for of_rank in self.veils])
            if commit:
                told = group.ask(self.deadline_s, do="commit", changed=self.changed)
            seen = time.perf_counter_ns() - start
            if commit:
                sums = [_sums(group, rank, reply, count) for rank, reply in enumerate(told)]
        if side == "candidate":
            self.ran += count
        own = max(_nanoseconds(group, rank, reply) for rank, reply in enumerate(replies))
        return Block(own / 1e9, seen / 1e9, sums)

    def step(self, side: str, count: int) -> Steps:
        """``count`` calls, each on a set that the side can read only when it has named the sum of the answer before."""
        group = self.reference if side == "reference" else self.candidate
        with self._alone(side):
            group.tell(do="steps", copy=self.copy, changed=self.changed)
            start, said, replies = group.step(self.deadline_s, [of_rank[:count] for of_rank in self.veils])
            seen = time.perf_counter_ns() - start
        if side == "candidate":
            self.ran += count
        told = [{"sums": [*before, reply.get("sum")]} for before, reply in zip(said, replies, strict=True)]
        sums = [_sums(group, rank, reply, count) for rank, reply in enumerate(told)]
        each = [_each(group, rank, reply, count) for rank, reply in enumerate(replies)]
        call = statistics.median(max(of_call) for of_call in zip(*each, strict=True))
        own = sum(max(of_call) for of_call in zip(*each, strict=True))
        return Steps(call / 1e9, (seen - own) / 1e9, sums)

    @contextmanager
    def _alone(self, side: str) -> Iterator[None]:
        """Within the context the candidate stands still, if this is the reference's turn."""
        if side == "reference":
            self.candidate.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if side == "reference":
                self.candidate.signal(signal.SIGCONT)

    def hand_over(self, calls: Sequence[int]) -> None:
        """Have the candidate hand these calls' answers of its last block to the reference ranks."""
        self.reference.tell(do="collect", calls=len(calls))
        self.candidate.ask(self.deadline_s, do="answers", calls=list(calls), changed=self.changed)
        self.reference.replies(self.deadline_s)


@dataclass(frozen=True)
class Block:
    """own: seconds of the slowest rank, by its clock; seen: by the parent's, until every rank had committed itself to its answers.

    sums: of each call's answer, by rank.
    """

    own: float
    seen: float
    sums: list[list[int]]


@dataclass(frozen=True)
class Steps:
    """Calls under veils: seconds of the median call on its slowest rank, what passed beyond all calls, and the answers' sums by rank."""

    call: float
    gap: float
    sums: list[list[int]]


@dataclass(frozen=True)
class Chained:
    """A block of calls that depend on each other: the slowest rank's seconds, what its clock hid, and what passes between alone."""

    own: float
    gap: float
    between: float
    count: int


def _sums(group: RankGroup, rank: int, reply: dict[str, Any], count: int) -> list[int]:
    """What a rank commits itself to: an integer for each call; a candidate may say anything."""
    said = reply.get("sums")
    if not isinstance(said, list) or len(said) != count or not all(_is_word(x) for x in said):
        raise GroupFailed("lost", rank, f"rank {rank} broke the protocol", role=group.role)
    return said


def _is_word(said: Any) -> bool:
    return isinstance(said, int) and -(1 << 63) <= said < 1 << 63


def _nanoseconds(group: RankGroup, rank: int, reply: dict[str, Any]) -> int:
    """What a rank says a block took: at least 1 ns; a candidate may say anything."""
    said = reply["ns"]
    if not isinstance(said, int) or not 0 <= said < 1 << 62:
        raise GroupFailed("lost", rank, f"rank {rank} broke the protocol", role=group.role)
    return max(1, said)


def _each(group: RankGroup, rank: int, reply: dict[str, Any], count: int) -> list[int]:
    """What a rank says each of its calls took (ns)."""
    said = reply.get("each")
    if not isinstance(said, list) or len(said) != count:
        raise GroupFailed("lost", rank, f"rank {rank} broke the protocol", role=group.role)
    return [_nanoseconds(group, rank, {"ns": x}) for x in said]
