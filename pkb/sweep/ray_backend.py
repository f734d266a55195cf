"""The driver's side of ``ray_process``: nodes and builders behind a socket, and a new process when one is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, Any

from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.records import Evaluation, Job
from pkb.sweep import fleet
from pkb.sweep.backend import ClusterLost, NodeLost
from pkb.sweep.ray_process import receive, send

CONNECT_SECONDS = 180.0
#: The other process ends what killed actors left behind, and its own actors; what that takes, and some for Ray itself.
CLOSE_SECONDS = fleet.SWEPT_SECONDS + fleet.CLOSE_SECONDS + 10.0
EXIT_SECONDS = 2.0
RETRY_SECONDS = 3.0
#: How long a new connection is tried for, at least, after Ray was lost.
RECONNECT_SECONDS = 120.0

#: What the process that talks to Ray may inherit, and with it a Ray that it starts: no keys, no credentials.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "CPATH", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS", "OMP_NUM_THREADS", "XDG_CACHE_HOME",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED",
)  # fmt: skip


#: Ray's own settings, unless the user has others: no reports to its makers, and patience on a machine that is busy.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "150"}


class RayNode:
    """A node behind the socket."""

    def __init__(self, backend: RayBackend, number: int, name: str) -> None:
        self._backend, self._number = backend, number
        self.name = name
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def evaluate(self, job: Job, build: Any) -> Evaluation:
        """See ``backend.Node``."""
        return await self._backend.request("evaluate", self._number, job, build)

    async def health(self) -> str | None:
        """See ``backend.Node``."""
        return await self._backend.request("health", self._number)


class RayBackend:
    """A Ray cluster as the backend of a sweep.

    log: where the other process writes what it has to say. notice: told, in one line, what whoever watches should know. evaluator,
    build: what the actors call, ``module:name``. Use ``open`` first, ``close`` at the end.
    """

    def __init__(
        self,
        config: Config,
        log: Path,
        notice: Callable[[str], None] = lambda text: None,
        evaluator: str = "pkb.evaluate.node:Evaluator",
        build: str = "pkb.evaluate.build:build",
    ) -> None:
        self._greeting = (config, evaluator, build)
        self._config, self._log, self._notice = config, log, notice
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._nodes: dict[int, RayNode] = {}
        self._offered: asyncio.Queue[RayNode] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._authentication: dict[str, str] = {}

    async def open(self) -> None:
        """Connect to Ray. Raises UserError when there is no cluster at the address, HarnessError when it does not answer.

        ``ray start`` makes a cluster ask for a token where it finds one, but Ray presents none to a cluster named by its address,
        and a cluster without tokens does not work with a process that has one. So one is presented only if it does not go without.
        """
        try:
            reader = await self._start_with_token_if_need_be()
        except HarnessError as error:  # it died while it started, as it may later
            self._notice(f"{error}; trying once more")
            reader = await self._start_with_token_if_need_be()
        self._keeping = asyncio.create_task(self._keep(reader))

    async def nodes(self) -> AsyncIterator[RayNode]:
        """See ``backend.Backend``. Raises HarnessError when Ray is lost for good."""
        assert self._keeping is not None
        while True:
            offered = asyncio.ensure_future(self._offered.get())
            either: list[asyncio.Future[Any]] = [offered, self._keeping]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not offered.done():
                    self._keeping.result()
                yield offered.result()
            finally:
                offered.cancel()

    async def build(self, source: str, device: str) -> Any:
        """See ``backend.Backend``."""
        await self._connected.wait()
        return await self.request("build", source, device)

    def publish(self, values: Mapping[tuple[str, str, str], float]) -> None:
        """Hand numbers (``Progress.gauges``) to Ray's monitoring, if it is there."""
        if self._writer is not None and self._connected.is_set():
            send(self._writer, next(self._numbers), "publish", dict(values))

    async def close(self) -> None:
        """End the other process and all it started."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._end(CLOSE_SECONDS if self._connected.is_set() else 0.0)  # before that it holds nothing of ours

    async def request(self, what: str, *arguments: Any) -> Any:
        """Ask the other process; raises what it reports, and ClusterLost when it goes."""
        if self._writer is None:
            raise ClusterLost("Ray is lost")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send(self._writer, number, what, *arguments)
            await self._writer.drain()
            return await answer
        except ConnectionError:
            raise ClusterLost("Ray is lost") from None
        finally:
            self._waiting.pop(number, None)

    # -- the other process -------------------------------------------------------------------------------------------

    async def _start_with_token_if_need_be(self) -> asyncio.StreamReader:
        try:
            return await self._start()
        except UserError:
            if not self._config.cluster.address or not _has_token():
                raise
            self._authentication = {"RAY_AUTH_MODE": "token"}
            return await self._start()

    async def _start(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        root = os.fspath(Path(__file__).resolve().parents[2])
        kept = {k: v for k, v in os.environ.items() if k in ENVIRONMENT or k.startswith("RAY_")}
        kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {**SETTINGS, **self._authentication, **kept}
        log: IO[bytes]
        with theirs, open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pkb.sweep.ray_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        send(self._writer, *self._greeting)
        try:
            message = await asyncio.wait_for(receive(reader), CONNECT_SECONDS)
        except TimeoutError:
            message = ("ended", f"no connection to Ray within {CONNECT_SECONDS:.0f} s; see {self._log}")
        except (asyncio.IncompleteReadError, ConnectionError):
            message = ("ended", f"the process that talks to Ray ended with {await self._end(EXIT_SECONDS)}; see {self._log}")
        if message[0] == "open":
            self._connected.set()
            return reader
        await self._end()
        raise UserError(message[1]) if message[0] == "refused" else HarnessError(message[1])

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        """Read what the other process says; when it is lost, start another one, for as long as there is hope."""
        while True:
            reason = await self._read(reader)
            self._notice(f"{reason}; connecting again")
            await self._end()
            patience = max(RECONNECT_SECONDS, self._config.cluster.lost_node_seconds)
            since = time.monotonic()
            while True:
                try:
                    reader = await self._start()
                    break
                except (UserError, HarnessError) as error:
                    if time.monotonic() - since > patience:
                        raise HarnessError(f"{reason}, and no new connection within {patience:.0f} s ({error})") from None
                    await asyncio.sleep(RETRY_SECONDS)
            self._notice("connected to Ray again")

    async def _read(self, reader: asyncio.StreamReader) -> str:
        """Take messages until the other process ends; returns why it did."""
        while True:
            try:
                kind, *rest = await receive(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return "the process that talks to Ray is gone"
            if kind == "ended":
                return rest[0]
            if kind == "notice":
                self._notice(rest[0])
            elif kind == "node":
                node = self._nodes[rest[0]] = RayNode(self, *rest)
                self._offered.put_nowait(node)
            elif kind == "lost":
                self._nodes.pop(rest[0]).lost.set_result(rest[1])
            else:
                self._settle(kind, *rest)

    def _settle(self, kind: str, number: int, *rest: Any) -> None:
        answer = self._waiting.pop(number, None)
        if answer is None or answer.done():
            return
        if kind == "done":
            answer.set_result(rest[0])
        else:
            answer.set_exception(NodeLost(*rest) if kind == "node lost" else HarnessError(*rest))

    async def _end(self, seconds: float = 0.0) -> int | None:
        """Close our end, wait that long for the other process to clear up, kill it; what it was doing is lost. Its exit code."""
        self._connected.clear()
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for node in self._nodes.values():
            node.lost.set_result("Ray is lost")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ClusterLost("Ray is lost"))
        self._nodes, self._waiting = {}, {}
        if process is None:
            return None
        try:
            await asyncio.to_thread(process.wait, seconds + 0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        return process.returncode


def _has_token() -> bool:
    """Whether Ray finds a token here."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return "RAY_AUTH_MODE" not in os.environ and ("RAY_AUTH_TOKEN" in os.environ or Path(path).is_file())
