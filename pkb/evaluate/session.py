"""One candidate, from its source to its verdict. Read ``judge`` from top to bottom: it is the way through."""

from __future__ import annotations

import hashlib
import hmac
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pkb import candidate, problem
from pkb.analyze.mechanism import mechanism
from pkb.draw import trial_key
from pkb.evaluate import bound, chain, channels, diagnosis, gpu_state, integrity, profiling, timing
from pkb.evaluate.build import Build
from pkb.evaluate.pair import Ended, Pair, size_text
from pkb.evaluate.ranks import GroupFailed
from pkb.problem import VARIANTS, Cost
from pkb.records import FEEDBACK, Evaluation
from pkb.verdict import Stage, Verdict

LATE_MS = 3.0  # how late, at most, the rank that is slowed on purpose enters a call
RANDOM_DELAY_US = 300
PATIENCE = 10.0  # times the reference's own time, where that is more than evaluation.limits.call_seconds
BURST_BYTES = 1 << 30  # of answers of one burst, per rank
BURST_SETS_BYTES = 4 << 30  # of the input sets of one burst and their outputs, per rank
REPEATED = "when repeated"  # the burst on one set of inputs, without delays


@dataclass
class Session(Pair):
    """The state of one judgement; ``result`` turns it into the record."""

    stage: Stage = Stage.CHECK
    set_bytes: int = 0
    place: int | None = None  # the leaf of the inputs that a call of a chain changes for the next
    connections: int = 0  # network sockets of the candidate group before it runs any code of the candidate's
    reference_seconds: float = 0.0  # of a reference call, slowest rank
    gpus: Sequence[int] = ()  # CUDA devices whose state is kept beside the times

    def judge(self, build: Build | None, make_build: Callable[[], Build]) -> Evaluation:
        """Run every stage until one decides. Raises HarnessError when the machine fails; the candidate group is always ended."""
        try:
            with self._stage(Stage.CHECK):
                if found := candidate.check(self.job.source, self.job.problem):
                    raise Ended(*found)
            with self._stage(Stage.BUILD):
                build = build or make_build()
                self.fields["build_log"] = build.log
                self.fields["extra"] = {"mechanism": mechanism(self.job.source, build.opcodes)}
                if not build.ok:
                    raise Ended(Verdict.COMPILE_ERROR, _first_line(build.log))
            with self._stage(Stage.LOAD):
                self._expect()
                self._load(build)
            with self._stage(Stage.CORRECTNESS):
                self._trials()
                self._stress()
                traffic = self._traffic()
            with self._stage(Stage.TIMING):
                timed = self._time(traffic.explained)
            self.stage = Stage.DONE
            if fault := traffic.fault or timed.fault:
                self.fields["measured"] = str(Verdict.CORRECT)
                raise Ended(Verdict.FORBIDDEN, fault)
            if self.job.purpose == FEEDBACK:
                self._profile()
            return self.result(Verdict.CORRECT, "")
        except Ended as end:
            return self.result(end.verdict, end.detail)
        finally:
            self.close()

    def profile(self, build: Build, calls: int) -> list[bytes]:
        """Chrome traces of so many calls, by rank, right or wrong. Raises Ended when the candidate cannot be run."""
        try:
            if found := candidate.check(self.job.source, self.job.problem):
                raise Ended(*found)
            if not build.ok:
                raise Ended(Verdict.COMPILE_ERROR, _first_line(build.log))
            self.fields.setdefault("extra", {})
            self._expect()
            self._load(build)
            assert self.group is not None
            with self._faults(Verdict.RUNTIME_ERROR):
                return profiling.trace(self.reference, self.group, self.config.evaluation, self._key, calls)
        finally:
            self.close()

    def result(self, verdict: Verdict, detail: str) -> Evaluation:
        """The record of what is known so far."""
        return Evaluation(
            problem=self.job.problem,
            verdict=verdict,
            detail=detail,
            stage=self.stage,
            world_size=self.job.world_size,
            size=size_text(self.job),
            dtype=self.job.dtype,
            device=self.job.device,
            policy=self.config.integrity.collectives,
            protocol=timing.PROTOCOL,
            seconds_by_stage={k: round(v, 4) for k, v in self.seconds.items()},
            **self.fields,
        )

    # -- stages ------------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        """Have the reference ranks compute what is expected, once per problem and node."""
        job, error = self.job, 0.0
        self._trusted(do="problem", name=job.problem, preset=job.preset, dims=dict(job.dims), dtype=job.dtype)
        for trial in range(self.config.evaluation.trials):
            known = self._trusted(do="expect", trial=trial, key=self._key(trial))
            self.set_bytes = max(self.set_bytes, *(int(k["set_bytes"]) for k in known))
            error = max(error, *(float(k["error"]) for k in known))
            self.reference_seconds = max(float(k["seconds"]) for k in known)
        movable = self._trusted(do="movable", trial=0, key=self._key(0))
        self.place = chain.choose([m["movable"] for m in movable])
        self.fields["extra"]["reference_error"] = error

    def _load(self, build: Build) -> None:
        self.group = self.take_candidate()
        self.fields["sandbox"] = self.group.level
        self.connections = channels.connections(self.group.pid)
        self._attach()
        limits = self.config.evaluation.limits
        libraries = self.group.place(build.files)
        replies = self._candidate(
            limits.load_seconds + (0 if build.files else limits.build_seconds),
            Verdict.LOAD_ERROR,
            do="load",
            source=self.job.source,
            libraries=libraries,
            device=self.job.device,
        )
        for reply in replies:
            names = _texts(reply.get("parameters"))
            if found := candidate.interface_fault(names, self.job.problem):
                raise Ended(*found)

    def _trials(self) -> None:
        """Each trial alone: one call from a common start, every output and input compared on every rank."""
        worst, storages = 0.0, []
        for trial in range(self.config.evaluation.trials):
            self.reference.tell(do="exchange", trial=trial, key=self._key(trial))
            replies = self._candidate(self._patient_deadline(1), Verdict.RUNTIME_ERROR, do="call")
            storages.append([_numbers(r.get("storages")) for r in replies])
            worst = max(worst, self._verdict_of(self._judged(), trial))
            self.fields.update(trials=trial + 1, max_error=worst)
        plain = [s for t, s in enumerate(storages) if t % len(VARIANTS) == 0]
        self.fields["reuses_output"] = len(plain) > 1 and any(a & b for a, b in zip(plain[0], plain[1], strict=True))

    def _stress(self) -> None:
        """Back-to-back calls with different data, one rank late, inputs overwritten on return: where races show."""
        dice = random.SystemRandom()
        trials = self._burst_trials(dice)
        late = dice.randrange(self.job.world_size)
        among = list(range(len(trials)))
        order = (among * 2 + dice.sample(among * 2, len(trials)))[: self._burst_calls(len(trials), 3 * len(trials))]
        for name, order_now, slowed in (
            (REPEATED, [0] * self._burst_calls(2, 3), None),
            ("back to back", order, None),
            ("with a late rank", order, late),
        ):
            trials_now = [0] if name == REPEATED else trials
            keys = [self._key(t) for t in trials_now]
            self.reference.tell(do="burst", trials=trials_now, keys=keys, order=order_now)
            self._candidate(
                2 * self._deadline(len(order_now)),
                Verdict.RUNTIME_ERROR,
                per_rank=lambda rank, s=slowed: {"late_ms": LATE_MS if rank == s else 0.0},
                do="burst",
                delay_us=0.0 if name == REPEATED else RANDOM_DELAY_US,
                order=order_now,
                changed=self._changed(),
                whole=dice.randrange(len(order_now)),
            )
            judged = self._judged()
            bad = next((j for j in judged if not j["right"]), None)
            if bad is not None:
                rank = judged.index(bad)
                self._diagnose(bad["call"], when=name, trial=bad["trial"])
                what = (
                    f"right in isolation, wrong {name}: call {bad['call']} (trial {bad['trial']}), rank {rank}: {bad['detail']}"
                )
                raise Ended(Verdict.NONDETERMINISTIC, what)
            self.fields["max_error"] = max(self.fields["max_error"], *(float(j["error"]) for j in judged))

    def _traffic(self) -> integrity.Traffic:
        """What torch.distributed and the loopback interface carried per call, once everything has settled."""
        traffic = self._observed()
        if traffic.writes:  # being observed can make torch.compile compile once more; who writes in every call does it again
            traffic = self._observed()
        self.fields["collective_bytes"] = traffic.bytes_per_call
        return traffic

    def _observed(self) -> integrity.Traffic:
        """The traffic of one burst whose calls are looked at closely."""
        assert self.group is not None
        calls = self._burst_calls(2, 8)
        self.reference.tell(do="burst", trials=[0], keys=[self._key(0)], order=[0] * calls)
        before = self._counters()
        with self._watch(channels.SAMPLE_S) as sockets:
            replies = self._candidate(
                2 * self._patient_deadline(calls),
                Verdict.RUNTIME_ERROR,
                do="burst",
                late_ms=0.0,
                delay_us=0.0,
                order=[0] * calls,
                changed=self._changed(),
                whole=-1,
                observe=True,
            )
        after = self._counters()
        self._judged()
        return self._assess(replies, calls, channels.between(before, after, calls, self.job.world_size, sockets))

    def _time(self, explained: float) -> integrity.Traffic:
        """Time the candidate, and watch what it moves meanwhile: it may behave otherwise than in the burst that was looked at.

        explained: bytes on the network per rank and call that had their explanation then.
        """
        settings = self.config.evaluation
        if not settings.timing.enabled:
            return integrity.Traffic(0, "")
        assert self.group is not None
        self.before_timing()
        state = gpu_state.ask(self.gpus)
        before = self._counters()
        with self._faults(Verdict.RUNTIME_ERROR), self._watch(channels.GENTLE_S) as sockets:
            found = timing.measure(
                self.reference, self.group, settings, self._key, self.set_bytes, self._changed(), self.job.device, self.place
            )
        afterwards = gpu_state.ask(self.gpus)
        after = self._counters()
        replies = self._candidate(settings.limits.call_seconds, Verdict.RUNTIME_ERROR, do="account")
        if found.wrong:
            self._diagnose(found.wrong_call, when="timed")
            raise Ended(Verdict.NONDETERMINISTIC, found.wrong)
        evidence = {**found.evidence, "pairs": found.pairs, "calls": found.calls}
        if self.gpus:
            evidence["gpus"] = {"before": state.answer(), "after": afterwards.answer()}
        self.fields.update(
            speedup=found.speedup,
            speedup_low=found.low,
            speedup_high=found.high,
            reference_ms=found.reference_ms,
            candidate_ms=found.candidate_ms,
            extra={**self.fields.get("extra", {}), "timing": evidence},
        )
        if found.suspicious:
            raise Ended(Verdict.TAMPERING, f"rule outside-clock: {found.suspicious}")
        shared = self.fields.get("shared_device")  # ranks take turns there, and what a call takes depends on the others
        if found.batched and not shared:
            raise Ended(Verdict.TAMPERING, f"rule chained-calls: {found.batched}")
        least = bound.bound_ms(self._cost(), self.job.device)
        if found.candidate_ms < least and not shared:
            what = f"{found.candidate_ms:.3g} ms per call, less than the {least:.3g} ms that no machine can beat"
            raise Ended(Verdict.TAMPERING, f"rule physical-bound: {what}")
        return self._assess(
            replies, found.run, channels.between(before, after, found.run, self.job.world_size, sockets), explained
        )

    def _profile(self) -> None:
        """Add where the time goes; a candidate that falls over its profile has its verdict already."""
        assert self.group is not None
        start = time.monotonic()
        try:
            with self._faults(Verdict.RUNTIME_ERROR):
                traces = profiling.trace(self.reference, self.group, self.config.evaluation, self._key)
            moves = (self.fields["extra"].get("mechanism") or {}).get("primary", "none") not in ("none", "collective")
            found: dict[str, Any] = profiling.summary(traces, profiling.kernels_in(self.job.source) if moves else ())
        except Ended as end:
            found = {"failed": end.detail}
        self.seconds["profile"] = time.monotonic() - start
        self.fields["extra"] = {**self.fields["extra"], "profile": found}

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _watch(self, period_s: float) -> channels.SocketWatch:
        assert self.group is not None
        return channels.SocketWatch(self.group.pid, self.job.device != "cpu", period_s, self.connections)

    def _assess(
        self, replies: list[dict[str, Any]], calls: int, moved: channels.Moved, explained: float = 0.0
    ) -> integrity.Traffic:
        assert self.group is not None
        private = self.group.level == "namespaces"
        if not private:  # sockets of the whole machine
            moved = channels.Moved(moved.network, moved.written)
        told = [{k: _texts(r.get(k)) if k.endswith("ops") else _count(r.get(k)) for k in _ACCOUNT} for r in replies]
        private &= self.job.device == "cpu"
        return integrity.assess(self.config.integrity.collectives, told, calls, moved, self._cost(), explained, private)

    def _cost(self) -> Cost:
        """The least work of one call, per rank."""
        spec = problem.load(self.job.problem)
        return spec.cost(spec.shape(self.job.world_size, self.job.preset, self.job.dtype, self.job.dims))

    def _changed(self) -> list[int]:
        """Positions of the inputs that the problem changes."""
        spec = problem.load(self.job.problem)
        return [i for i, p in enumerate(spec.parameters()) if p.name in spec.mutates]

    def _burst_trials(self, dice: random.Random) -> list[int]:
        """The trials whose sets are on the devices together in a burst: all, or as many (two at least) as BURST_SETS_BYTES hold."""
        trials = self.config.evaluation.trials
        return sorted(dice.sample(range(trials), min(trials, max(2, BURST_SETS_BYTES // max(1, self.set_bytes)))))

    def _burst_calls(self, least: int, most: int) -> int:
        """How many calls of a burst are kept and compared: ``most``, or as many as BURST_BYTES hold."""
        return max(least, min(most, BURST_BYTES // max(1, self.set_bytes)))

    def _deadline(self, calls: int) -> float:
        """Seconds after which calls that have not come back are a deadlock: far more than the reference needs for as many."""
        return max(self.config.evaluation.limits.call_seconds, PATIENCE * calls * self.reference_seconds)

    def _patient_deadline(self, calls: int) -> float:
        """As ``_deadline``, for calls that may build extensions, or compile for their shapes or for being observed."""
        words = ("cpp_extension", "compile_cuda_extension", "triton", "torch.compile")
        builds = any(word in self.job.source for word in words)
        return self._deadline(calls) + (self.config.evaluation.limits.build_seconds if builds else 0.0)

    def _verdict_of(self, judged: list[dict[str, Any]], trial: int) -> float:
        where = f"trial {trial} ({VARIANTS[trial % len(VARIANTS)]})"
        for rank, found in enumerate(judged):
            if not found["structure"]:
                raise Ended(Verdict.WRONG_STRUCTURE, f"{where}, rank {rank}: {found['detail']}")
        worst = max(range(len(judged)), key=lambda r: float(judged[r]["error"]))
        error = float(judged[worst]["error"])
        if error > 1.0:
            self.fields["max_error"] = error if math.isfinite(error) else None
            self._diagnose(-1, when="in isolation", trial=trial)
            wrong = [r for r, j in enumerate(judged) if not j["right"]]
            which = (
                "every rank" if len(wrong) == len(judged) else f"ranks {wrong}" if len(wrong) > 1 else f"rank {wrong[0]} only"
            )
            raise Ended(Verdict.MISMATCH, f"{where}, rank {worst}: {judged[worst]['detail']} (wrong on {which})")
        return error

    def _diagnose(self, call: int, when: str, trial: int | None = None) -> None:
        """Find out what is behind wrong values; whatever comes of that, the verdict stands."""
        facts: dict[str, Any] = {"when": when}
        if trial is not None:
            facts["variant"] = VARIANTS[trial % len(VARIANTS)]
        try:
            found = self.reference.ask(self.config.evaluation.limits.timing_seconds, do="diagnose", call=call)
            facts.update(diagnosis.of_values(found))
        except GroupFailed as error:
            facts["failed"] = str(self.reference_failed(error))  # this ends them, and the next candidate gets new ones
        self.fields["extra"] = {**self.fields.get("extra", {}), "diagnosis": facts}

    def _key(self, trial: int) -> str:
        return trial_key(self.secret, self.job.problem, trial).hex()

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        self.stage = stage
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[str(stage)] = self.seconds.get(str(stage), 0.0) + time.monotonic() - start


def run_secret(secret: bytes, purpose: str) -> bytes:
    """An independent secret for a purpose (first judgement, feedback, ...): draws of one say nothing about another's."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()


#: What a candidate rank says of its own traffic.
_ACCOUNT = ("sent_bytes", "op_count", "meetings", "peers", "ops", "float_ops")


def _texts(said: Any) -> list[str]:
    """A list of texts out of what a candidate rank said, which may be anything."""
    return [str(x) for x in said] if isinstance(said, list) else []


def _numbers(said: Any) -> set[int]:
    return {x for x in said if isinstance(x, int)} if isinstance(said, list) else set()


def _count(said: Any) -> int:
    return said if isinstance(said, int) and 0 <= said < 1 << 62 else 0


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "the build failed")[:500]
