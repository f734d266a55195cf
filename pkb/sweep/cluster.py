"""Ray: the one module of pkb that imports it. Machines, actors and calls; who is wanted where is decided in ``fleet``.

Ray restarts and repeats nothing here (``max_restarts=0``, ``max_task_retries=0``). Only small things travel: jobs, builds (shared
libraries), verdicts. Every blocking call into Ray has a deadline, because several of them hang for ever when the head is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.evaluate import folders
from pkb.sweep import placement
from pkb.sweep.backend import NodeLost
from pkb.sweep.placement import Machine

NAMESPACE = "pkb"
#: The head answers in milliseconds; when it does not for this long, it is gone.
HEAD_SECONDS = 15.0
SHUTDOWN_SECONDS = 30.0
LAST_WORDS_SECONDS = 15.0
LAST_WORDS_BYTES = 8000
#: Of a Ray that is started here: jobs and builds are small.
OBJECT_STORE_BYTES = 512 * 2**20

T = TypeVar("T")


class HeadLost(HarnessError):
    """The head of the Ray cluster, or our own connection to it, is gone: every actor is lost."""


class Cluster:
    """A connection to a Ray cluster, or to one that is started here and ends with the connection."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._gauges: dict[str, Any] = {}
        self._names: dict[str, str] = {}  # by node id

    async def connect(self) -> None:
        """Start Ray here or join the cluster of ``cluster.address``; raises UserError when there is none at that address.

        Blocks. What Ray starts here dies with the thread that started it, so this has to be the main thread.
        """
        _connect(self._config)

    async def disconnect(self) -> None:
        """End the connection, and Ray itself if it was started here."""
        with contextlib.suppress(TimeoutError):
            await _aside(ray.shutdown, SHUTDOWN_SECONDS)

    async def machines(self) -> list[Machine]:
        """The machines that are alive; raises HeadLost when nobody says."""
        try:
            nodes, own = await _aside(lambda: (ray.nodes(), ray.get_runtime_context().get_node_id()), HEAD_SECONDS)
        except (TimeoutError, RayError, ConnectionError, RuntimeError) as error:
            raise HeadLost(f"the Ray head does not answer ({_first_line(error)})") from None
        alive = [n for n in nodes if n["Alive"]]
        if own not in {n["NodeID"] for n in alive}:
            raise HeadLost("the Ray node of this process is gone")
        self._names = placement.machine_names(self._names, alive)
        return [
            Machine(
                node_id=n["NodeID"],
                name=self._names[n["NodeID"]],
                cpus=float(n["Resources"].get("CPU", 0)),
                gpus=int(n["Resources"].get("GPU", 0)),
                local=not self._config.cluster.address,
            )
            for n in alive
        ]

    async def start(self, actor: type, arguments: Sequence[Any], node_id: str, cpus: float, gpus: int, concurrency: int) -> Any:
        """Ask for an actor on one machine; the handle can be called at once, and tells by NodeLost if nothing came of it.

        Raises TimeoutError when the head does not take the order.
        """
        remote: Any = ray.remote(actor).options(  # type: ignore[attr-defined]
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=concurrency,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        return await _aside(lambda: remote.remote(*arguments), HEAD_SECONDS)

    async def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        """The result of an actor's method; raises NodeLost when the actor is gone, HarnessError when Ray or the method failed."""
        try:
            return await getattr(actor, method).remote(*arguments)
        except RayActorError as error:
            raise NodeLost(_first_line(error)) from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            raise HarnessError(f"in the actor: {cause!r}" if cause is not None else _first_line(error)) from error

    def publish(self, values: Mapping[tuple[str, str, str], float]) -> None:
        """Set gauges that Ray's dashboard and Prometheus show: (name, tag, tag's value) -> number; no tag: empty strings."""
        from ray.util.metrics import Gauge

        for (name, tag, value), number in values.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(f"pkb_{name}", description="", tag_keys=(tag,) if tag else ())
            self._gauges[name].set(number, tags={tag: value} if tag else {})

    async def kill(self, actor: Any) -> None:
        """End an actor that does not answer."""
        with contextlib.suppress(Exception):  # gone already, or Ray is
            await _aside(lambda: ray.kill(actor, no_restart=True), HEAD_SECONDS)

    async def last_words(self, node_id: str, path: str) -> str:
        """The end of a text file on a machine; empty when the machine is gone, too."""
        remote: Any = ray.remote(_tail).options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        )
        try:
            return await _aside(lambda: ray.get(remote.remote(path), timeout=LAST_WORDS_SECONDS), LAST_WORDS_SECONDS)
        except (RayError, TimeoutError):
            return ""


def _tail(path: str) -> str:
    try:
        return Path(path).read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""


def _connect(config: Config) -> None:
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    address = config.cluster.address
    try:
        if address:
            staging, lock = folders.claim("pkb-code-")
            try:
                ray.init(address, runtime_env=placement.travelling_code(staging), **common)
            finally:
                folders.release(staging, lock)
        else:
            cpus = placement.local_cpus(config)
            ray.init("local", num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **common)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise UserError(
            f"cluster.address={address or 'local'}: {_first_line(error)}; is it up (`ray status`), and has this machine its token "
            "(RAY_AUTH_TOKEN, see docs/cluster.md)?"
            if address
            else f"Ray does not start on this machine: {_first_line(error)}"
        ) from None


async def _aside(function: Callable[[], T], seconds: float) -> T:
    """The result of a blocking call; raises TimeoutError after ``seconds``. A call that hangs keeps a daemon thread, no more."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="ray-call").start()
    return await asyncio.wait_for(done, seconds)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
