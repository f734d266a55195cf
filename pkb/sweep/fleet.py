"""The machines of a cluster as nodes and builders for the driver, while machines and actors come and go.

A lost actor is reported to the driver, which decides about its work; where the machine still lives a new one is started. When the
head is lost, so is every actor: this ends then, and whoever started it may start another.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from pkb.config import Config
from pkb.errors import HarnessError
from pkb.records import Evaluation, Job
from pkb.sweep import placement
from pkb.sweep.backend import NodeLost
from pkb.sweep.placement import Machine, Place

LOG = logging.getLogger(__name__)
POLL_SECONDS = 2.0
#: What could not be started is tried again after this.
RETRY_SECONDS = 15.0
SWEPT_SECONDS = 20.0  # at the end, for the successors of actors that died
CLOSE_SECONDS = 10.0  # then, for actors to end what they have started


class Connection(Protocol):
    """What this module needs of ``pkb.sweep.cluster.Cluster``."""

    async def connect(self) -> None: ...
    async def disconnect(self) -> None: ...
    async def machines(self) -> list[Machine]: ...
    async def start(self, actor: type, arguments: Any, node_id: str, cpus: float, gpus: int, concurrency: int) -> Any: ...
    async def call(self, actor: Any, method: str, *arguments: Any) -> Any: ...
    async def kill(self, actor: Any) -> None: ...
    async def last_words(self, node_id: str, path: str) -> str: ...
    def publish(self, values: Mapping[tuple[str, str, str], float]) -> None: ...


@dataclasses.dataclass(eq=False)
class Actor:
    """A living actor. lost: done, with the reason, when it is gone; log: its last words, then."""

    name: str
    handle: Any
    lost: asyncio.Future[str]
    log: str = ""


class FleetNode:
    """One group of ranks on one machine, as the driver sees it. limit: seconds after which it has hung."""

    def __init__(self, cluster: Connection, actor: Actor, group: int, name: str, limit: float) -> None:
        self._cluster, self._actor, self._group, self._limit = cluster, actor, group, limit
        self.name = name
        self.lost = actor.lost

    async def evaluate(self, job: Job, build: Any) -> Evaluation:
        """See ``backend.Node``."""
        found = await self._call("evaluate", job, build)
        if isinstance(found, str):
            raise HarnessError(found)
        return found

    async def health(self) -> str | None:
        """See ``backend.Node``."""
        return await self._call("health")

    async def _call(self, method: str, *arguments: Any) -> Any:
        answer = asyncio.ensure_future(self._cluster.call(self._actor.handle, method, self._group, *arguments))
        either: list[asyncio.Future[Any]] = [answer, self.lost]
        try:
            await asyncio.wait(either, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                with contextlib.suppress(NodeLost):
                    return answer.result()
            elif not self.lost.done():
                await self._cluster.kill(self._actor.handle)
                raise NodeLost(f"did not answer within {self._limit:.0f} s")
        finally:
            answer.cancel()
        reason = await self.lost  # with it come the last words
        raise NodeLost(reason, self._actor.log)


class Fleet:
    """All nodes and builders of a cluster; the backend of a sweep.

    notice: told, in one line, what whoever watches should know. evaluator, build: what the actors call, ``module:name``. Use
    ``open`` first, ``close`` at the end.
    """

    def __init__(
        self,
        config: Config,
        cluster: Connection,
        notice: Callable[[str], None] = lambda text: None,
        evaluator: str = "pkb.evaluate.node:Evaluator",
        build: str = "pkb.evaluate.build:build",
    ) -> None:
        self._config, self._cluster, self._notice = config, cluster, notice
        self._evaluator, self._build = evaluator, build
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes: asyncio.Queue[FleetNode] = asyncio.Queue()
        self._builders: asyncio.Queue[Actor] = asyncio.Queue()
        self._actors: dict[str, Actor] = {}  # that live
        self._wanted: set[str] = set()  # that live, or are being started
        self._skipped: set[str] = set()
        self._unswept: dict[str, str] = {}  # machine of each actor that died and has no successor yet, by its name

    async def open(self) -> None:
        """Connect. Raises UserError when there is no cluster at the address."""
        await self._cluster.connect()
        self._watching = asyncio.create_task(self._watch())

    async def nodes(self) -> AsyncIterator[FleetNode]:
        """See ``backend.Backend``. Raises HarnessError when the head is lost."""
        while True:
            following = asyncio.ensure_future(self._nodes.get())
            either: list[asyncio.Future[Any]] = [following, self._watching]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self._watching.done():
                    self._watching.result()  # raises what ended it
                yield following.result()
            finally:
                following.cancel()

    async def build(self, source: str, device: str) -> Any:
        """See ``backend.Backend``."""
        builder = await self._free_builder()
        limit = self._config.evaluation.limits.build_seconds * 2 + 60
        calling = asyncio.ensure_future(self._cluster.call(builder.handle, "build", source, device))
        either: list[asyncio.Future[Any]] = [calling, builder.lost]
        rest = 0.0
        try:
            await asyncio.wait(either, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                built = calling.result()
            elif builder.lost.done():
                raise NodeLost(builder.lost.result())
            else:
                await self._cluster.kill(builder.handle)
                raise NodeLost(f"did not answer within {limit:.0f} s")
        except HarnessError as error:
            if isinstance(error, NodeLost):
                rest = RETRY_SECONDS  # its loss is known by then; until then it would fail one build after the other
            raise HarnessError(f"builder {builder.name}: {error}") from None
        finally:
            calling.cancel()
            asyncio.get_running_loop().call_later(rest, self._builders.put_nowait, builder)
        if isinstance(built, str):
            raise HarnessError(f"builder {builder.name}: {built}")
        return built

    def publish(self, values: Mapping[tuple[str, str, str], float]) -> None:
        """Hand numbers to the cluster's monitoring."""
        self._cluster.publish(values)

    async def close(self) -> None:
        """End our actors and what they started, and the connection."""
        with contextlib.suppress(HarnessError, TimeoutError):
            await asyncio.wait_for(self._swept(), SWEPT_SECONDS)
        self._watching.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._watching, *self._tasks, return_exceptions=True)
        closing = [asyncio.ensure_future(self._cluster.call(a.handle, "close")) for a in self._actors.values()]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)
            await asyncio.gather(*closing, return_exceptions=True)
        await self._cluster.disconnect()

    async def _swept(self) -> None:
        """Wait for the successors of actors that died on machines that are still there: they end what was left running."""
        while self._unswept and not self._watching.done():
            here = {machine.node_id for machine in await self._cluster.machines()}
            if not here & set(self._unswept.values()):
                return
            await asyncio.sleep(POLL_SECONDS / 4)

    async def _free_builder(self) -> Actor:
        while True:
            builder = await self._builders.get()
            if not builder.lost.done():
                return builder

    # -- comings and goings ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep an actor on every machine that can serve, and builders on the spare CPUs, as machines come and go."""
        while True:
            machines = await self._cluster.machines()
            for machine in machines:
                self._staff(machine)
            for name, node_id, cpus in placement.builders(machines, self._config):
                self._want(name, self._keep_builder(name, node_id, cpus))
            await asyncio.sleep(POLL_SECONDS)

    def _staff(self, machine: Machine) -> None:
        if reason := placement.unfit(machine, self._config):
            if machine.name not in self._skipped:
                self._skipped.add(machine.name)
                self._notice(f"node {machine.name} is not used: {reason}")
            return
        for place in placement.places(machine, self._config):
            self._want(place.name, self._keep_node(place))

    def _want(self, name: str, keep: Coroutine[Any, Any, None]) -> None:
        """Run the life of an actor, unless there is one of this name."""
        if name in self._wanted:
            keep.close()
            return
        self._wanted.add(name)
        task = asyncio.create_task(keep)
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._wanted.discard(name)
            if not task.cancelled() and (error := task.exception()) is not None:
                LOG.error("%s: %s", name, error, exc_info=error)

        task.add_done_callback(ended)

    async def _keep_node(self, place: Place) -> None:
        """One GpuNode actor's life."""
        from actors.gpu_node import GpuNode

        arguments = (self._config, place.name, place.groups, self._evaluator)
        concurrency = len(place.groups) + 3
        limit = evaluation_limit(self._config)

        def serve(actor: Actor) -> None:
            for group, name in enumerate(place.group_names):
                self._nodes.put_nowait(FleetNode(self._cluster, actor, group, name, limit))

        await self._live(place.name, GpuNode, arguments, place.node_id, place.cpus, place.gpus, concurrency, serve)

    async def _keep_builder(self, name: str, node_id: str, cpus: float) -> None:
        """One Builder actor's life."""
        from actors.builder import Builder

        evaluation = dataclasses.replace(self._config.evaluation, build_jobs=max(1, int(cpus)))
        config = dataclasses.replace(self._config, evaluation=evaluation)
        await self._live(name, Builder, (config, name, self._build), node_id, cpus, 0, 3, self._builders.put_nowait)

    async def _live(
        self,
        name: str,
        kind: type,
        arguments: Any,
        node_id: str,
        cpus: float,
        gpus: int,
        concurrency: int,
        serve: Callable[[Actor], None],
    ) -> None:
        """Start an actor, hand it out, and wait for its end; a failed start is tried again by the watch, after a rest."""
        handle = None
        try:
            handle = await self._cluster.start(kind, arguments, node_id, cpus, gpus, concurrency)
            waiting = self._cluster.call(handle, "ready")
            removed, log = await asyncio.wait_for(waiting, self._config.evaluation.limits.start_seconds)
        except (HarnessError, TimeoutError) as error:
            self._notice(f"{name} did not start: {str(error) or 'no answer'}; trying again")
            if handle is not None:
                await self._cluster.kill(handle)
            await asyncio.sleep(RETRY_SECONDS)
            return
        if removed:
            LOG.warning("%s", removed)
        self._unswept.pop(name, None)
        actor = self._actors[name] = Actor(name, handle, asyncio.get_running_loop().create_future())
        serve(actor)
        reason = "ended"
        try:
            await self._cluster.call(handle, "until_death")
        except HarnessError as error:
            reason = str(error)
            self._unswept[name] = node_id
            actor.log = await self._cluster.last_words(node_id, log)
        self._actors.pop(name, None)
        actor.lost.set_result(reason)


def evaluation_limit(config: Config) -> float:
    """Seconds after which a node that does not answer has hung: what all its own deadlines allow, and then some."""
    limits, evaluation = config.evaluation.limits, config.evaluation
    calls = (evaluation.trials * 3 + 4) * limits.call_seconds
    return 120 + 2 * limits.start_seconds + limits.build_seconds + limits.load_seconds + calls + 2 * limits.timing_seconds
