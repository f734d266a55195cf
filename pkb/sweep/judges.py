"""Builders and nodes at work: a candidate goes in, a verdict comes out, whatever becomes of the machines meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from dataclasses import dataclass, field, replace
from typing import Any

from pkb.config import Config
from pkb.errors import HarnessError
from pkb.evaluate.build import Build
from pkb.records import Evaluation, Generation, Job
from pkb.sweep import static
from pkb.sweep.backend import Backend, ClusterLost, Node, NodeLost
from pkb.sweep.dispatch import Dispatch
from pkb.sweep.progress import Progress
from pkb.sweep.recorder import Recorder, log_path, of_attempt
from pkb.sweep.suspicion import Suspicion
from pkb.verdict import Stage, Verdict

#: How long a node that failed its canary rests before it is asked again.
QUARANTINE_SECONDS = 60.0
#: How often the presence of usable nodes is looked at.
WATCH_SECONDS = 1.0
#: How compilers say that they were killed. A candidate can make them say so; it costs a second build.
COMPILER_KILLED = re.compile(r"(?i)killed signal terminated program|died due to signal 9|compiler.*signal 9\b")
LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Waiting:
    """A candidate on its way through build and evaluation.

    stage: where it is now. avoid: nodes that failed under it. failures: what went wrong with the harness under it, in order.
    seconds: of judging that ended in failures. killed: what of the candidate's own was killed by a signal that nobody accounts for;
    it was judged again then, once, since neither the candidate nor the machine can be blamed for certain.
    """

    generation: Generation
    job: Job
    outcome: asyncio.Future[Evaluation] = field(repr=False)
    stage: str = "build"
    build: Build | None = None
    avoid: set[str] = field(default_factory=set)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    killed: str = ""

    @property
    def problem(self) -> str:
        return self.job.problem

    @property
    def model(self) -> str:
        return self.generation.key.model


class Judges:
    """The pool of nodes and builders of one session, and the queue before the nodes."""

    def __init__(self, config: Config, backend: Backend, recorder: Recorder, progress: Progress) -> None:
        self._config, self._backend, self._recorder, self._progress = config, backend, recorder, progress
        self._dispatch: Dispatch[Waiting] = Dispatch(patience=max(8, config.cluster.lag))
        self._suspicion = Suspicion(config.evaluation.tries)
        self._builds: dict[str, asyncio.Task[Build]] = {}
        self._usable: set[str] = set()

    async def run(self) -> None:
        """Serve every node of the backend, until cancelled. Raises HarnessError when none is usable for too long."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch())
                async for node in self._backend.nodes():
                    group.create_task(self._serve(node))
        finally:
            for task in list(self._builds.values()):
                task.cancel()

    async def judge(self, item: Waiting) -> Evaluation:
        """The verdict on a candidate: compile error, what a node found, or harness error after several tries."""
        evaluation = await self._build(item)
        if evaluation is None:
            self._enter(item, "wait")
            self._dispatch.put(item)
            evaluation = await item.outcome
        return evaluation

    # -- builds ------------------------------------------------------------------------------------------------------

    async def _build(self, item: Waiting) -> Evaluation | None:
        """Compile what the candidate needs; None when it can be run, else the verdict."""
        if static.nothing_to_build(item.job.source):
            item.build = Build("", True)
            return None
        while True:
            began = self._progress.clock()
            try:
                item.build = await self._build_once(item.job)
                if not item.build.ok and not item.killed and COMPILER_KILLED.search(item.build.log):
                    await self._killed(item, "builder", "its compiler was killed")
                    item.build = await self._build_once(item.job)
                return static.by_build(item.build, item.problem, self._config)
            except HarnessError as error:
                given_up = await self._failed(item, "builder", error, self._progress.clock() - began, Stage.BUILD)
                if given_up is not None:
                    return given_up

    async def _build_once(self, job: Job) -> Build:
        """Identical sources that are being built at the same time share one build."""
        key = hashlib.sha256(job.source.encode("utf-8", "replace")).hexdigest()
        task = self._builds.get(key)
        if task is None:
            task = self._builds[key] = asyncio.create_task(self._backend.build(job.source, job.device))
            task.add_done_callback(lambda _: self._builds.pop(key, None))
        return await asyncio.shield(task)

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def _serve(self, node: Node) -> None:
        """Feed one node until it is lost."""
        await self._state(node.name, "ready")
        try:
            while True:
                item = await self._next(node)
                failure = await self._evaluate(node, item)
                if isinstance(failure, NodeLost):
                    raise failure
                if failure is not None:
                    await self._quarantine(node)
        except NodeLost as lost:
            await self._state(node.name, "lost", str(lost))

    async def _next(self, node: Node) -> Waiting:
        """The next candidate for a node; raises NodeLost when the node goes while it waits for one."""
        taking = asyncio.ensure_future(self._dispatch.take(node.name))
        either: list[asyncio.Future[Any]] = [taking, node.lost]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not node.lost.done():
                return taking.result()
            if taking.done():
                self._dispatch.put(taking.result())
            raise NodeLost(node.lost.result())
        finally:
            if not taking.done():
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    async def _evaluate(self, node: Node, item: Waiting) -> HarnessError | None:
        """Judge one candidate on one node; returns the failure when it is the node that failed."""
        self._enter(item, "evaluate")
        self._progress.node_begins(node.name, item.job.label)
        try:
            evaluation = await node.evaluate(item.job, item.build)
        except HarnessError as error:
            seconds = self._progress.node_ends(node.name)
            item.avoid.add(node.name)
            given_up = await self._failed(item, node.name, error, seconds, Stage.LOAD)
            if given_up is None:
                self._enter(item, "wait")
                self._dispatch.put(item)
            else:
                item.outcome.set_result(given_up)
            return error
        self._suspicion.judged(self._progress.node_ends(node.name))
        if evaluation.extra.get("killed") and not item.killed:
            await self._killed(item, node.name, evaluation.detail)
            self._enter(item, "wait")
            self._dispatch.put(item)
            return None
        if item.killed:
            evaluation = replace(evaluation, extra={**evaluation.extra, "judged_again_after": item.killed})
        item.outcome.set_result(replace(evaluation, node=evaluation.node or node.name))
        return None

    async def _failed(self, item: Waiting, where: str, error: HarnessError, seconds: float, stage: Stage) -> Evaluation | None:
        """Note that the harness failed under a candidate; the harness error to record if it is not to be tried again."""
        lost = isinstance(error, NodeLost) and not isinstance(error, ClusterLost)
        failure = {
            "node": where,
            "error": str(error),
            "lost": lost,
            "log": getattr(error, "log", ""),
            "seconds": round(seconds, 3),
        }
        item.failures.append(failure)
        item.seconds += seconds
        self._suspicion.failed(seconds)
        key = item.generation.key
        await self._recorder.note(log_path(key), [of_attempt(key, "harness error", tried=len(item.failures), **failure)])
        LOG.warning("%s: harness error on %s: %s", item.job.label, where, error)
        if not self._suspicion.guilty(len(item.failures), item.seconds):
            return None
        places = sorted({f["node"] for f in item.failures})
        detail = f"the harness failed under it {len(item.failures)} times, on {', '.join(places)}: {error}"
        outcome = static.outcome(item.problem, self._config, Verdict.HARNESS_ERROR, detail, stage)
        given_up = sum(f["lost"] for f in item.failures) >= 2
        return replace(outcome, node=where, extra={"failures": item.failures, "given_up": given_up})

    async def _killed(self, item: Waiting, where: str, what: str) -> None:
        """Note that a candidate is judged again because something killed a process of its."""
        item.killed = what
        key = item.generation.key
        await self._recorder.note(log_path(key), [of_attempt(key, "killed", node=where, detail=what)])
        LOG.warning("%s: %s on %s; judged again", item.job.label, what, where)

    async def _quarantine(self, node: Node) -> None:
        """After a harness error: back to work at once if the canary is right, else rest and be asked again."""
        reason = await _health(node)
        if reason is None:
            return
        await self._state(node.name, "quarantined", reason)
        while reason is not None:
            await asyncio.sleep(QUARANTINE_SECONDS)
            reason = await _health(node)
        await self._state(node.name, "ready", "released from quarantine")

    async def _state(self, name: str, state: str, reason: str = "") -> None:
        self._progress.node(name, state, reason)
        if state == "ready":
            self._usable.add(name)
            self._dispatch.join(name)
        else:
            self._progress.notice(f"node {name} {state}: {reason}")
            self._usable.discard(name)
            self._dispatch.leave(name)
        await self._recorder.event("node", node=name, state=state, reason=reason)

    def _enter(self, item: Waiting, stage: str) -> None:
        self._progress.move(item.model, item.stage, stage)
        item.stage = stage

    async def _watch(self) -> None:
        """Raise HarnessError when there has been no usable node for too long."""
        patience = self._config.cluster.lost_node_seconds + self._config.evaluation.limits.start_seconds
        clock = self._progress.clock
        seen = clock()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._usable:
                seen = clock()
            elif clock() - seen > patience:
                reasons = [f"{name} {n.state}: {n.reason}" for name, n in self._progress.nodes.items()]
                last = list(self._progress.notices)[-1:]
                raise HarnessError(
                    f"no usable node for {clock() - seen:.0f} s ({'; '.join(reasons or last) or 'none came up'}); "
                    "run the same command again to continue"
                )


async def _health(node: Node) -> str | None:
    """None when the node is well, else what is wrong; raises NodeLost when it is gone."""
    try:
        return await node.health()
    except NodeLost:
        raise
    except HarnessError as error:
        return str(error)
