"""The timing protocol: alternating blocks of reference and candidate on fresh inputs (docs/timing.md).

A block is a number of back-to-back calls, each on an input set that its side has never seen. As soon as it has ended each rank
commits itself to every answer by a sum over its bits, and only then learns which answers will be judged: what it hands over must have
that sum, so no call can be skipped or made up for later. Outputs that share memory from call to call are copied in stream order, on
both sides. While the reference runs, the candidate's processes are stopped. Each rank measures its own block; the parent brackets it,
sums included, with a clock of its own, and the candidate's time is never taken to be less than what that clock allows.
"""

from __future__ import annotations

import math
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pkb.config import EvaluationConfig
from pkb.evaluate.ranks import GroupFailed, RankGroup
from pkb.evaluate.stats import median_interval
from pkb.problem import TIMING_TRIAL

PROTOCOL = 6
#: Before a block: on a busy machine, processes that have just worked are slower at first, and reference ranks have, on the inputs.
REST_SECONDS = {"cpu": 0.01, "cuda": 0.0}
BLOCK_SECONDS = 0.02  # long against the start of a block, short against drifting clocks
SETS_BYTES = {"cpu": 128 << 20, "cuda": 4 << 30}  # memory for the input sets of one block, per rank
MOST_SETS = 64
JUDGED = 2  # calls of a block whose answers are judged
CHARGED = (
    1.25  # what the reference's blocks hide as a rule is taken this many times; what the candidate's hide beyond is its time
)
DOUBT = 2.0  # what the worst of the reference's blocks hides is taken this many times before anybody is accused
UNSEEN = 0.5  # share of its own time by which a candidate's clock may lag behind the parent's in every block


@dataclass(frozen=True)
class Timing:
    """speedup and interval; milliseconds per call of the slowest rank; evidence for what is suspicious."""

    speedup: float
    low: float
    high: float
    reference_ms: float
    candidate_ms: float
    pairs: int
    calls: int
    run: int = 0  # all calls of the candidate, warm-up included
    wrong: str = ""  # a judged timed call that was wrong
    wrong_call: int = -1  # which of the calls judged last that was
    suspicious: str = ""  # the candidate's own clock ran behind the parent's
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass
class Blocks:
    """Both groups, and how to run one block on either."""

    reference: RankGroup
    candidate: RankGroup
    deadline_s: float
    changed: list[int]  # inputs that the problem changes, by position
    copy: bool = False  # outputs are copied in stream order
    ran: int = 0  # calls of the candidate so far

    def run(self, side: str, first: int, count: int, renew: bool, commit: bool = False) -> Block:
        """One block of ``count`` calls.

        commit: have every rank say the sums of all its answers at once, on the parent's clock.
        """
        group = self.reference if side == "reference" else self.candidate
        if side == "reference":
            self.candidate.signal(signal.SIGSTOP)
        sums: list[list[int]] = []
        try:
            group.tell(do="block", first=first, count=count, renew=renew, copy=self.copy)
            start, replies = group.go(self.deadline_s)
            if commit:
                told = group.ask(self.deadline_s, do="commit", changed=self.changed)
            seen = time.perf_counter_ns() - start
            if commit:
                sums = [_sums(group, rank, reply, count) for rank, reply in enumerate(told)]
        finally:
            if side == "reference":
                self.candidate.signal(signal.SIGCONT)
        if side == "candidate":
            self.ran += count
        own = max(_nanoseconds(group, rank, reply) for rank, reply in enumerate(replies))
        return Block(own / 1e9, seen / 1e9, sums)

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


def _sums(group: RankGroup, rank: int, reply: dict[str, Any], count: int) -> list[int]:
    """What a rank commits itself to: an integer for each call; a candidate may say anything."""
    said = reply.get("sums")
    if not isinstance(said, list) or len(said) != count or not all(isinstance(x, int) for x in said):
        raise GroupFailed("lost", rank, f"rank {rank} broke the protocol", role=group.role)
    return said


def _nanoseconds(group: RankGroup, rank: int, reply: dict[str, Any]) -> int:
    """What a rank says a block took: at least 1 ns; a candidate may say anything."""
    said = reply["ns"]
    if not isinstance(said, int) or not 0 <= said < 1 << 62:
        raise GroupFailed("lost", rank, f"rank {rank} broke the protocol", role=group.role)
    return max(1, said)


def measure(
    reference: RankGroup,
    candidate: RankGroup,
    settings: EvaluationConfig,
    key_of: Callable[[int], str],
    set_bytes: int,
    changed: list[int],
    device: str,
) -> Timing:
    """Time the candidate against the reference. key_of: trial -> key of its draw. Raises GroupFailed."""
    timing, limits = settings.timing, settings.limits
    end = time.monotonic() + limits.timing_seconds
    secret = random.SystemRandom()
    blocks = Blocks(reference, candidate, limits.timing_seconds, changed)
    drawn = 0

    spent: defaultdict[str, float] = defaultdict(float)  # seconds by part of the protocol

    @contextmanager
    def part(name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        spent[name] += time.monotonic() - start

    def fresh(count: int) -> None:
        nonlocal drawn
        trial = TIMING_TRIAL + drawn
        drawn += count
        candidate.tell(do="sets")
        reference.ask(limits.timing_seconds, do="sets", first=trial, keys=[key_of(trial + i) for i in range(count)], send=True)
        candidate.replies(limits.timing_seconds)

    most = max(2, min(MOST_SETS, SETS_BYTES[device] // max(1, set_bytes)))
    with part("sets"):
        fresh(min(8, most))
    with part("warmup"):
        per_call = {side: _warm(blocks, side, min(8, most), settings) for side in ("candidate", "reference")}
    wanted = max(math.ceil(timing.iterations / timing.blocks), math.ceil(BLOCK_SECONDS / max(per_call.values(), default=1e-3)))
    typical = max(1, min(most, wanted))
    longest = max(1, min(most, math.ceil(1.25 * typical)))
    with part("warmup"):  # outputs may be few buffers in turn: only a block as long as any that is timed shows it
        blocks.run("candidate", 0, longest, bool(changed))
        told = candidate.ask(limits.timing_seconds, do="answers", calls=[], changed=changed)
    blocks.copy = any(r.get("shared") is True for r in told)
    took: dict[str, list[float]] = {"reference": [], "candidate": []}  # seconds per call on the ranks' own clocks
    gaps: dict[str, list[float]] = {"reference": [], "candidate": []}  # seconds on the parent's clock beyond them, per block
    counts: list[int] = []
    for pair in range(timing.blocks):
        if pair >= 3 and time.monotonic() > end:
            break
        count = secret.randint(max(1, math.ceil(0.75 * typical)), longest)
        with part("sets"):
            fresh(count)
        judged = sorted(secret.sample(range(count), min(JUDGED, count)))
        sums: list[list[int]] = []
        for side in ("reference", "candidate") if pair % 2 == 0 else ("candidate", "reference"):
            with part("rest"):
                time.sleep(REST_SECONDS[device])
            with part("blocks"):
                block = blocks.run(side, 0, count, False, commit=True)
                if side == "candidate":
                    sums = [[of_rank[call] for call in judged] for of_rank in block.sums]
                    blocks.hand_over(judged)
            took[side].append(block.own / count)
            gaps[side].append(block.seen - block.own)
        counts.append(count)
        with part("judge"):
            named = [{"sums": of_rank} for of_rank in sums]
            answers = reference.ask(limits.timing_seconds, named.__getitem__, do="judge_block", first=0, calls=judged)
        found = [r for r in answers if not r["right"]]
        if found:
            detail = f"a timed call was answered wrongly: {found[0]['detail']}"
            return Timing(0, 0, 0, 0, 0, pair + 1, sum(counts), wrong=detail, wrong_call=int(found[0]["call"]))
    # what the machine itself hides, sums included, shows in the reference's blocks, whose clock is honest; what a block of the
    # candidate's hides beyond that is added to its time, and if it goes far beyond the worst in every block, its clock lies
    worst = max(gaps["reference"])
    blocks_seen = list(zip(gaps["candidate"], took["candidate"], counts, strict=True))
    hidden = min((gap - DOUBT * worst) / (own * count) for gap, own, count in blocks_seen)
    usual = CHARGED * statistics.median(gaps["reference"])  # one slow block may excuse from blame, but must not buy speed
    took["candidate"] = [own + max(0.0, gap - usual) / count for gap, own, count in blocks_seen]
    ratios = [r / c for r, c in zip(took["reference"], took["candidate"], strict=True)]
    suspicious = ""
    if hidden > UNSEEN:
        suspicious = f"in every block, {hidden:.0%} or more of the candidate's own time passed without its clock showing it"
    middle, low, high = median_interval(ratios, timing.bootstrap)
    return Timing(
        middle,
        low,
        high,
        1e3 * statistics.median(took["reference"]),
        1e3 * statistics.median(took["candidate"]),
        len(ratios),
        sum(counts),
        blocks.ran,
        suspicious=suspicious,
        evidence={
            "block_calls": typical,
            "unseen_share": round(hidden, 3),
            "hidden_ms": {side: round(1e3 * statistics.median(found), 3) for side, found in gaps.items()},  # median block
            "set_bytes": set_bytes,
            "outputs_copied": blocks.copy,
            "seconds": {k: round(v, 3) for k, v in spent.items()},
        },
    )


def _warm(blocks: Blocks, side: str, sets: int, settings: EvaluationConfig) -> float:
    """Warm up to the configured number of calls or seconds, whichever comes first; returns seconds per call."""
    timing = settings.timing
    done, start, per_call = 0, time.monotonic(), 0.0
    while done < timing.warmup:
        left = timing.warmup_seconds - (time.monotonic() - start)
        if done >= 2 * sets and left <= 0:
            break
        count = min(sets, timing.warmup - done)
        per_call = blocks.run(side, done % sets, count, bool(blocks.changed)).own / count
        done += count
    return per_call


__all__ = ["PROTOCOL", "Blocks", "GroupFailed", "Timing", "measure"]
