"""The timing protocol: alternating blocks of reference and candidate on fresh inputs (docs/timing.md).

A block is a number of back-to-back calls, each on an input set that its side has never seen. As soon as it has ended each rank
commits itself to every answer by a sum over its bits, and only then learns which answers will be judged: what it hands over must have
that sum, so no call can be skipped or made up for later. Outputs that share memory from call to call are copied in stream order, on
both sides. A few further blocks are chains, in which a call's inputs depend on the answer before (``pkb.evaluate.chain``): calls
that take longer there have elsewhere been answered together. While the reference runs, the candidate's processes are stopped. Each
rank measures its own block; the parent brackets it, sums included, with a clock of its own, and the candidate's time is never taken to
be less than what that clock allows.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pkb.config import EvaluationConfig
from pkb.evaluate.blocks import Blocks, Chained, Steps
from pkb.evaluate.ranks import RankGroup
from pkb.evaluate.stats import median_interval
from pkb.evaluate.veil import KEY_BITS
from pkb.problem import TIMING_TRIAL

PROTOCOL = 8
#: Before a block: on a busy machine, processes that have just worked are slower at first, and reference ranks have, on the inputs.
REST_SECONDS = {"cpu": 0.01, "cuda": 0.0}
BLOCK_SECONDS = 0.02  # long against the start of a block, short against drifting clocks
SETS_BYTES = {"cpu": 128 << 20, "cuda": 4 << 30}  # memory for the input sets of one block, per rank
MOST_SETS = 64
JUDGED = 2  # calls of a block whose answers are judged
CHAINED = 16  # calls of a chain, at most
CHAINS = 3  # after pairs of blocks that are drawn
JUDGED_BYTES = 64 << 20  # of a chain under veils all calls are judged whose sets and answers take no more
#: What the reference's blocks hide as a rule is taken this many times; what the candidate's hide beyond is its time.
CHARGED = 1.25
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
    batched: str = ""  # calls that depend on each other take far longer than others
    evidence: dict[str, Any] = field(default_factory=dict)


def measure(
    reference: RankGroup,
    candidate: RankGroup,
    settings: EvaluationConfig,
    key_of: Callable[[int], str],
    set_bytes: int,
    changed: list[int],
    device: str,
    place: int | None = None,
) -> Timing:
    """Time the candidate against the reference.

    key_of: trial -> key of its draw. place: the leaf of the inputs that a call of a chain changes for the next; None: no chains.
    Raises GroupFailed.
    """
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

    def fresh(count: int, veiled: bool = place is None) -> None:
        nonlocal drawn
        trial = TIMING_TRIAL + drawn
        drawn += count
        keys = [key_of(trial + i) for i in range(count)]
        blocks.veils = [[secret.getrandbits(KEY_BITS) for _ in keys] for _ in range(reference.world_size)] if veiled else []
        candidate.tell(do="sets", veiled=veiled)
        by_rank = (lambda rank: {"veils": blocks.veils[rank]}) if veiled else None
        reference.ask(limits.timing_seconds, by_rank, do="sets", first=trial, keys=keys, send=True)
        candidate.replies(limits.timing_seconds)

    most = max(2, min(MOST_SETS, SETS_BYTES[device] // max(1, set_bytes)))
    with part("sets"):
        fresh(min(8, most), veiled=False)
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
    chains: list[Chained] = []

    @contextmanager
    def turn(name: str) -> Iterator[None]:
        """A side's turn, after a rest; ``name``: the part of the protocol."""
        with part("rest"):
            time.sleep(REST_SECONDS[device])
        with part(name):
            yield

    def judge(judged: list[int], sums: list[list[int]], moved: int | None = None) -> dict[str, Any] | None:
        """A rank's word on the first wrong one of these calls, which have been handed over; None if all are right."""
        named = [{"sums": [of_rank[call] for call in judged]} for of_rank in sums]
        command: dict[str, Any] = {"do": "judge_block", "first": 0, "calls": judged}
        if moved is not None:
            command["place"] = moved
            for said, of_rank in zip(named, sums, strict=True):
                said["before"] = [of_rank[call - 1] if call else None for call in judged]  # type: ignore[misc]
        with part("judge"):
            answers = reference.ask(limits.timing_seconds, named.__getitem__, **command)
        return next((r for r in answers if not r["right"]), None)

    def chain(count: int) -> dict[str, Any] | None:
        """Time a chain of ``count`` calls, or calls under veils in its place, and judge some."""
        with part("sets"):
            fresh(count)
        if place is None:
            with turn("chains"):
                usual = blocks.step("reference", count)
            with turn("chains"):
                steps = blocks.step("candidate", count)
            chains.append(_stepped(usual, steps, count, statistics.median(took["reference"])))
            sums = steps.sums
            judged = list(range(count)) if count * set_bytes <= JUDGED_BYTES else sorted(secret.sample(range(count), JUDGED))
        else:
            with turn("chains"):
                between = blocks.run("reference", 0, count, False, place=place)
            with turn("chains"):
                block = blocks.run("candidate", 0, count, False, commit=True, place=place)
            chains.append(Chained(block.own, block.seen - block.own, between.own, count))
            sums = block.sums
            judged = sorted({secret.randrange(1, count), secret.randrange(count)})  # at least one that depends on another
        with part("judge"):
            blocks.hand_over(judged)
        return judge(judged, sums, place)

    def wrong(found: dict[str, Any]) -> Timing:
        detail = f"a timed call was answered wrongly: {found['detail']}"
        return Timing(0, 0, 0, 0, 0, len(counts), sum(counts), wrong=detail, wrong_call=int(found["call"]))

    chained = secret.sample(range(timing.blocks), min(CHAINS, timing.blocks))
    for pair in range(timing.blocks):
        if pair >= 3 and time.monotonic() > end:
            break
        count = secret.randint(max(1, math.ceil(0.75 * typical)), longest)
        with part("sets"):
            fresh(count)
        judged = sorted(secret.sample(range(count), min(JUDGED, count)))
        sums: list[list[int]] = []
        for side in ("reference", "candidate") if pair % 2 == 0 else ("candidate", "reference"):
            with turn("blocks"):
                block = blocks.run(side, 0, count, False, commit=True)
            if side == "candidate":
                sums = block.sums
                with part("judge"):
                    blocks.hand_over(judged)
            took[side].append(block.own / count)
            gaps[side].append(block.seen - block.own)
        counts.append(count)
        if found := judge(judged, sums):
            return wrong(found)
        if pair in chained:
            length = max(2, min(count, secret.randint(CHAINED - CHAINED // 4, CHAINED)))
            if found := chain(length):
                return wrong(found)
    # what the machine itself hides, sums included, shows in the reference's blocks, whose clock is honest; what a block of the
    # candidate's hides beyond that is added to its time, and if it goes far beyond the worst in every block, its clock lies
    worst = max(gaps["reference"])
    blocks_seen = list(zip(gaps["candidate"], took["candidate"], counts, strict=True))
    hidden = min((gap - DOUBT * worst) / (own * count) for gap, own, count in blocks_seen)
    usual = CHARGED * statistics.median(gaps["reference"])  # one slow block may excuse from blame, but must not buy speed
    took["candidate"] = [own + max(0.0, gap - usual) / count for gap, own, count in blocks_seen]
    suspicious = ""
    if hidden > UNSEEN:
        suspicious = f"in every block, {hidden:.0%} or more of the candidate's own time passed without its clock showing it"
    noise = max(took["reference"]) / statistics.median(took["reference"])
    added, batched, chain_evidence = _weigh(chains, usual, took["candidate"], noise)
    took["candidate"] = [own + added for own in took["candidate"]]
    ratios = [r / c for r, c in zip(took["reference"], took["candidate"], strict=True)]
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
        batched=batched,
        evidence={
            "block_calls": typical,
            "unseen_share": round(hidden, 3),
            "hidden_ms": {side: round(1e3 * statistics.median(found), 3) for side, found in gaps.items()},  # median block
            "chain": chain_evidence,
            "set_bytes": set_bytes,
            "outputs_copied": blocks.copy,
            "seconds": {k: round(v, 3) for k, v in spent.items()},
        },
    )


def _stepped(reference: Steps, candidate: Steps, count: int, usual: float) -> Chained:
    """Calls under veils as a chain of ``count`` calls. usual: seconds of a reference's call in a plain block.

    Ranks that start each call anew wait for each other: how much longer a call takes so, the reference tells.
    """
    hidden = max(0.0, candidate.gap - CHARGED * reference.gap)
    return Chained(candidate.call * count + hidden, 0.0, max(0.0, reference.call - usual) * count, count)


def _weigh(
    chains: Sequence[Chained], usual: float, plain: Sequence[float], noise: float
) -> tuple[float, str, dict[str, float]]:
    """What chains tell: (seconds to add to each of the candidate's calls, an accusation or '', evidence).

    usual: seconds that a block hides as a rule. plain: seconds of the candidate's calls outside of chains, by block. noise: how much
    longer the reference's slowest block took than its median. A call and what passes between two calls take no longer together than
    one after the other, so what a chain takes beyond both, in its fastest block, are calls that have elsewhere been answered together.
    """
    if not chains:
        return 0.0, "", {}
    call = min((c.own + max(0.0, c.gap - usual)) / c.count for c in chains)
    between = [c.between / c.count for c in chains]
    added = max(0.0, call - CHARGED * noise * (statistics.median(plain) + statistics.median(between)))
    batched = ""
    if call > DOUBT * noise * (max(plain) + max(between)):
        batched = (
            f"calls that depend on the answer before take {1e3 * call:.3g} ms each, others at most {1e3 * max(plain):.3g} ms"
        )
    ms = {"call_ms": call, "between_ms": statistics.median(between), "added_ms": added}
    return added, batched, {name: round(1e3 * seconds, 4) for name, seconds in ms.items()}


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
