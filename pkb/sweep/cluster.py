"""Ray: the one module of pkb that imports it. Nodes and builders as actors, and the cluster's comings and goings.

Ray restarts and repeats nothing here (``max_restarts=0``, ``max_task_retries=0``): a lost actor is reported to the driver, which
decides about its work, and a new one is started where the machine still lives. Only small things travel: jobs, builds (shared
libraries), verdicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.records import Evaluation, Job
from pkb.sweep import placement
from pkb.sweep.backend import NodeLost
from pkb.sweep.placement import Machine

LOG = logging.getLogger(__name__)
NAMESPACE = "pkb"
POLL_SECONDS = 2.0
#: A machine whose actor could not be started is tried again after this.
RETRY_SECONDS = 15.0
CLOSE_SECONDS = 10.0
#: Of a Ray that is started here: jobs and builds are small.
OBJECT_STORE_BYTES = 512 * 2**20

#: What the processes of a Ray that we start may inherit: no keys, no credentials.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "CPATH", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS", "OMP_NUM_THREADS", "XDG_CACHE_HOME",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED",
)  # fmt: skip


class RayNode:
    """One group of ranks on one machine, as the driver sees it."""

    def __init__(self, actor: Any, group: int, name: str, limit: float, lost: asyncio.Future[str]) -> None:
        self._actor, self._group, self._limit = actor, group, limit
        self.name = name
        self.lost = lost

    async def evaluate(self, job: Job, build: Any) -> Evaluation:
        """See ``backend.Node``."""
        found = await self._call(self._actor.evaluate.remote(self._group, job, build))
        if isinstance(found, str):
            raise HarnessError(found)
        return found

    async def health(self) -> str | None:
        """See ``backend.Node``."""
        return await self._call(self._actor.health.remote(self._group))

    async def _call(self, reference: Any) -> Any:
        answer = asyncio.ensure_future(_answer(reference))
        either: list[asyncio.Future[Any]] = [answer, self.lost]
        try:
            await asyncio.wait(either, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
        if self.lost.done():
            raise NodeLost(self.lost.result())
        await asyncio.to_thread(_kill, self._actor)
        raise NodeLost(f"did not answer within {self._limit:.0f} s")


@dataclasses.dataclass
class _Builder:
    name: str
    actor: Any
    lost: bool = False


class RayBackend:
    """All machines of a Ray cluster (or of the local one that this starts) and the builders on their spare CPUs.

    notice: told, in one line, what whoever watches should know. evaluator, build: what the actors call, ``module:name``. Use
    ``connect`` first, ``close`` at the end.
    """

    def __init__(
        self,
        config: Config,
        notice: Callable[[str], None] = lambda text: None,
        evaluator: str = "pkb.evaluate.node:Evaluator",
        build: str = "pkb.evaluate.build:build",
    ) -> None:
        self._config, self._notice = config, notice
        self._evaluator, self._build = evaluator, build
        self._started = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._nodes: asyncio.Queue[RayNode] = asyncio.Queue()
        self._builders: asyncio.Queue[_Builder] = asyncio.Queue()
        self._actors: dict[str, Any] = {}  # by name, actors that live
        self._starting: set[str] = set()
        self._skipped: set[str] = set()
        self._builder_names: set[str] = set()

    async def connect(self) -> None:
        """Start Ray here or join the cluster of ``cluster.address``.

        Raises UserError when there is no cluster at that address, or no machine in it that could ever serve.
        """
        await asyncio.to_thread(_connect, self._config)
        self._started = True
        self._task(self._watch())

    async def nodes(self) -> AsyncIterator[RayNode]:
        """See ``backend.Backend``."""
        while True:
            yield await self._nodes.get()

    async def build(self, source: str, device: str) -> Any:
        """See ``backend.Backend``."""
        builder = await self._free_builder()
        limit = self._config.evaluation.limits.build_seconds * 2 + 60
        try:
            built = await asyncio.wait_for(_answer(builder.actor.build.remote(source, device)), limit)
        except NodeLost as error:
            raise HarnessError(f"builder {builder.name}: {error}") from None
        except TimeoutError:
            await asyncio.to_thread(_kill, builder.actor)
            raise HarnessError(f"builder {builder.name}: did not answer within {limit:.0f} s") from None
        finally:
            self._builders.put_nowait(builder)
        if isinstance(built, str):
            raise HarnessError(f"builder {builder.name}: {built}")
        return built

    async def _free_builder(self) -> _Builder:
        while True:
            builder = await self._builders.get()
            if not builder.lost:
                return builder

    async def close(self) -> None:
        """End our actors and what they started; end Ray if it was started here."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._started:
            return
        closing = [asyncio.ensure_future(_answer(actor.close.remote())) for actor in self._actors.values()]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)
        await asyncio.to_thread(ray.shutdown)

    def _task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    async def _watch(self) -> None:
        """Keep an actor on every machine that can serve, and builders on the spare CPUs, as machines come and go."""
        while True:
            machines = await asyncio.to_thread(_machines, self._config)
            for machine in machines:
                if reason := placement.unfit(machine, self._config):
                    if machine.name not in self._skipped:
                        self._skipped.add(machine.name)
                        self._notice(f"node {machine.name} is not used: {reason}")
                    continue
                for place in placement.places(machine, self._config):
                    if place.name not in self._actors and place.name not in self._starting:
                        self._starting.add(place.name)
                        self._task(self._start_node(place))
            for name, node_id, cpus in placement.builders(machines, self._config):
                if name not in self._builder_names:
                    self._builder_names.add(name)
                    self._task(self._start_builder(name, node_id, cpus))
            await asyncio.sleep(POLL_SECONDS)

    async def _start_node(self, place: placement.Place) -> None:
        from actors.gpu_node import GpuNode

        actor = None
        try:
            options = {
                "num_cpus": place.cpus,
                "num_gpus": place.gpus,
                "max_concurrency": len(place.groups) + 3,
                **_fixed(place.node_id),
            }
            remote: Any = ray.remote(GpuNode)
            actor = remote.options(**options).remote(self._config, place.name, place.groups, self._evaluator)
            limit = self._config.evaluation.limits.start_seconds
            removed = await asyncio.wait_for(_answer(actor.ready.remote()), limit)
            if removed:
                LOG.warning("%s", removed)
        except (HarnessError, TimeoutError) as error:
            self._notice(f"node {place.name} did not start: {str(error) or 'no answer'}; trying again")
            if actor is not None:
                await asyncio.to_thread(_kill, actor)
            await asyncio.sleep(RETRY_SECONDS)
            self._starting.discard(place.name)
            return
        self._actors[place.name] = actor
        self._starting.discard(place.name)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for group, name in enumerate(place.group_names):
            self._nodes.put_nowait(RayNode(actor, group, name, _evaluation_limit(self._config), lost))
        try:
            await _answer(actor.until_death.remote())
            reason = "ended"
        except HarnessError as error:
            reason = str(error)
        del self._actors[place.name]
        lost.set_result(reason)

    async def _start_builder(self, name: str, node_id: str, cpus: float) -> None:
        from actors.builder import Builder

        evaluation = dataclasses.replace(self._config.evaluation, build_jobs=max(1, int(cpus)))
        config = dataclasses.replace(self._config, evaluation=evaluation)
        remote: Any = ray.remote(Builder)
        actor = remote.options(num_cpus=cpus, max_concurrency=3, **_fixed(node_id)).remote(config, name, self._build)
        try:
            await asyncio.wait_for(_answer(actor.ready.remote()), self._config.evaluation.limits.start_seconds)
        except (HarnessError, TimeoutError) as error:
            self._notice(f"builder {name} did not start: {str(error) or 'no answer'}; trying again")
            await asyncio.to_thread(_kill, actor)
            await asyncio.sleep(RETRY_SECONDS)
            self._builder_names.discard(name)
            return
        builder = _Builder(name, actor)
        self._actors[name] = actor
        self._builders.put_nowait(builder)
        with contextlib.suppress(HarnessError):
            await _answer(actor.until_death.remote())
        builder.lost = True
        del self._actors[name]
        self._builder_names.discard(name)


def _fixed(node_id: str) -> dict[str, Any]:
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return {"scheduling_strategy": strategy, "max_restarts": 0, "max_task_retries": 0}


async def _answer(reference: Any) -> Any:
    """The result of a call; raises NodeLost when its actor or node is gone or Ray itself fails."""
    try:
        return await reference
    except RayActorError as error:
        raise NodeLost(_first_line(error)) from None
    except (RayError, GetTimeoutError) as error:
        cause = getattr(error, "cause", None)
        raise HarnessError(f"in the actor: {cause!r}" if cause is not None else _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1]) or type(error).__name__


def _kill(actor: Any) -> None:
    with contextlib.suppress(Exception):  # gone already, or Ray is
        ray.kill(actor, no_restart=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        LOG.error("%s", error, exc_info=error)


def _evaluation_limit(config: Config) -> float:
    """Seconds after which a node that does not answer has hung: what all its own deadlines allow, and then some."""
    limits, evaluation = config.evaluation.limits, config.evaluation
    calls = (evaluation.trials * 3 + 4) * limits.call_seconds
    return 120 + 2 * limits.start_seconds + limits.build_seconds + limits.load_seconds + calls + 2 * limits.timing_seconds


def _connect(config: Config) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    address = config.cluster.address
    try:
        if address:
            with tempfile.TemporaryDirectory(prefix="pkb-code-") as staging:
                ray.init(address, runtime_env=placement.travelling_code(Path(staging)), **common)
            return
        with _clean_environment():
            ray.init(
                "local",
                num_cpus=placement.local_cpus(config),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **common,
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"cluster.address={address or 'local'}: {_first_line(error)}; start one with `ray start --head` or leave the address out"
        ) from None


@contextlib.contextmanager
def _clean_environment() -> Iterator[None]:
    """What runs inside inherits only ENVIRONMENT, Ray's own variables, and where to find this package."""
    before = dict(os.environ)
    root = os.fspath(Path(__file__).resolve().parents[2])
    kept = {k: v for k, v in before.items() if k in ENVIRONMENT or k.startswith("RAY_")}
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [before.get("PYTHONPATH")])])
    os.environ.clear()
    os.environ.update(kept)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _machines(config: Config) -> list[Machine]:
    alive = [n for n in ray.nodes() if n["Alive"]]
    hosts = [n["NodeManagerHostname"] for n in alive]
    return [
        Machine(
            node_id=n["NodeID"],
            name=host if hosts.count(host) == 1 else f"{host}-{n['NodeID'][:6]}",
            cpus=float(n["Resources"].get("CPU", 0)),
            gpus=int(n["Resources"].get("GPU", 0)),
            local=not config.cluster.address,
        )
        for n, host in zip(alive, hosts, strict=True)
    ]
