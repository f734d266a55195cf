"""What really goes over the network: every request that litellm sends passes through a transport of ours.

litellm renames and drops parameters, turns foreign answers into its own form and loses parts on the way. Here the request is
recorded as it is sent, the response as it arrives, and a complete response is kept on disk before anyone reads it (the spool):
a driver that is killed afterwards finds it there when it asks the same question again, and nobody is billed twice.
The transport also sees to it that one call is one request: whatever a client library thinks of retries, they are ours.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from pkb.generate.facts import Facts, facts_of_json, read_event
from pkb.generate.spool import Spool

#: Seconds to establish a connection; how long an answer may take is the caller's business.
CONNECT_SECONDS = 30.0
#: Connections of one pool.
POOL_SIZE = 8
#: Of a response that is not a stream, more is not kept for inspection.
BODY_LIMIT = 64 * 2**20
KEPT_HEADERS = ("content-type", "content-encoding", "x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")
_current: ContextVar[Exchange | None] = ContextVar("pkb_exchange", default=None)


@dataclass
class Exchange:
    """One call's request and response, filled in as they happen.

    question: names the question in the spool; empty: nothing is kept. request: the JSON body as sent, without the conversation
    itself. status: of HTTP, 0 before there is one. body: of a response that is not a stream. events: of one that is.
    carried: the provider's requests are known to pass through our transport. replayed: the response came from the spool.
    """

    question: str = ""
    spool: Spool | None = None
    carried: bool = True
    url: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    requests: int = 0
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    streamed: bool = False
    body: bytearray = field(default_factory=bytearray)
    events: int = 0
    facts: Facts = field(default_factory=Facts)
    complete: bool = False
    replayed: bool = False
    seconds: float | None = None  # of the original call, when replayed
    _line: bytearray = field(default_factory=bytearray)

    @property
    def recorded(self) -> bool:
        """Whether the request passed through our transport."""
        return self.requests > 0

    @property
    def request_id(self) -> str:
        """The provider's own name of the request."""
        found = (self.headers.get(name) for name in ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid"))
        return next((value for value in found if value), "")

    @property
    def text(self) -> str:
        """The body as text, for messages."""
        return bytes(self.body[:4000]).decode("utf-8", "replace")

    def begin(self, request: httpx.Request) -> None:
        """Note a request; raises httpx.TransportError when this call has sent one that was not redirected."""
        if self.requests and not 300 <= self.status < 400:
            raise httpx.TransportError("a second request within one call was stopped; retries are made elsewhere")
        self.requests += 1
        self.url = (
            str(request.url.copy_with(query=None, userinfo=b"")) if request.url.userinfo else str(request.url).split("?")[0]
        )
        with contextlib.suppress(ValueError, httpx.RequestNotRead):
            sent = json.loads(request.content)
            if isinstance(sent, dict):
                self.request = {k: v for k, v in sent.items() if k not in ("messages", "contents", "system", "input", "prompt")}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the response."""
        if not self.streamed or "content-encoding" in self.headers:
            if len(self.body) < BODY_LIMIT:
                self.body += data
            return
        self._line += data
        if b"\n" in data:
            *lines, rest = bytes(self._line).split(b"\n")
            self._line = bytearray(rest)
            self._events(lines)

    def end(self) -> None:
        """The response is complete: read what it says about itself."""
        if self.body and "content-encoding" in self.headers:
            with contextlib.suppress(httpx.DecodingError):
                self.body = bytearray(httpx.Response(200, headers=self.headers, content=bytes(self.body)).content)
        if self.streamed:
            self._events([*bytes(self.body).split(b"\n"), bytes(self._line)])
            self.body, self._line = bytearray(), bytearray()
        else:
            self.facts = facts_of_json(bytes(self.body))
        self.complete = True

    def _events(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if line.startswith(b"data:"):
                self.events += 1
                self.facts = read_event(self.facts, line[5:].strip())


@contextlib.contextmanager
def exchange(question: str = "", spool: Spool | None = None, carried: bool = True) -> Iterator[Exchange]:
    """Record the one request that the block makes."""
    record = Exchange(question=question, spool=spool, carried=carried)
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


class Transport(httpx.AsyncBaseTransport):
    """httpx's own transport, recording into the exchange of the current task; proxies as the environment says.

    Connections lie in many small pools: one of httpx's looks at all of its connections for every request, which with 256 in
    flight took most of the CPU of a call (84 ms under a profiler, 18 ms with small pools).
    """

    def __init__(self, connections: int) -> None:
        self._ssl = httpx.create_ssl_context()
        self._proxies = urllib.request.getproxies()
        self._number = -(-connections // POOL_SIZE)
        self._pools: dict[str | None, list[_Pool]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        record = _current.get()
        pool = self._pool(request.url)
        timeouts = request.extensions.setdefault("timeout", {})
        timeouts["connect"] = min(timeouts.get("connect") or CONNECT_SECONDS, CONNECT_SECONDS)
        if record is None:
            return await pool.transport.handle_async_request(request)
        record.begin(request)
        path = record.spool.path(record.question, request.content) if record.spool and record.question else None
        if record.spool and path and (kept := record.spool.read(path)):
            return self._kept(record, path, *kept)
        request.headers["accept-encoding"] = "identity"  # recorded as it comes
        started = time.monotonic()
        pool.active += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.active -= 1
            raise
        record.status, record.headers = response.status_code, httpx.Headers(response.headers)
        record.streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        if response.status_code >= 400:
            response.headers["x-should-retry"] = "false"  # the OpenAI library heeds it, even where litellm loses max_retries
        kept_at = path if response.status_code == 200 else None
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Tee(response.stream, record, kept_at, started, pool),  # type: ignore[arg-type]
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        for pools in self._pools.values():
            for pool in pools:
                await pool.transport.aclose()

    def _kept(self, record: Exchange, path: Path, head: dict[str, Any], body: bytes) -> httpx.Response:
        record.status, record.headers = head["status"], httpx.Headers(head["headers"])
        record.streamed = record.headers.get("content-type", "").startswith("text/event-stream")
        record.feed(body)
        record.end()
        record.replayed, record.seconds = True, head["seconds"]
        return httpx.Response(head["status"], headers=head["headers"], stream=httpx.ByteStream(body))

    def _pool(self, url: httpx.URL) -> _Pool:
        """The least busy pool for this address."""
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        if proxy and urllib.request.proxy_bypass(url.host):
            proxy = None
        if proxy not in self._pools:
            alive = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
            if hasattr(socket, "TCP_KEEPIDLE"):  # a silent half hour must not look like a dead connection to a gateway
                alive += [(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30)]
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=POOL_SIZE, keepalive_expiry=60)
            self._pools[proxy] = [
                _Pool(httpx.AsyncHTTPTransport(verify=self._ssl, limits=limits, proxy=proxy, socket_options=alive))
                for _ in range(self._number)
            ]
        return min(self._pools[proxy], key=lambda pool: pool.active)


@dataclass
class _Pool:
    """A few connections; active: requests whose response has not ended."""

    transport: httpx.AsyncHTTPTransport
    active: int = 0


class _Tee(httpx.AsyncByteStream):
    """A response's bytes on their way, seen by the record and kept in the spool."""

    def __init__(self, stream: Any, record: Exchange, path: Path | None, started: float, pool: _Pool) -> None:
        self._stream, self._record, self._path, self._started = stream, record, path, started
        self._pool: _Pool | None = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        record = self._record
        with self._kept() as keep:
            async for data in self._stream:
                record.feed(data)
                keep(data)
                yield data
            record.end()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[Callable[[bytes], None]]:
        """Where to write what arrives. A full disk costs the spare copy, not the answer."""
        record, path = self._record, self._path
        if path is None or record.spool is None:
            yield lambda data: None
            return
        headers = {k: v for k, v in record.headers.items() if k in KEPT_HEADERS}
        # The time is that of the headers for a stream, of the whole for the rest, near enough for a record of a kill.
        head = {"status": record.status, "headers": headers, "seconds": time.monotonic() - self._started}
        file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            file = record.spool.create(path, head)

        def keep(data: bytes) -> None:
            nonlocal file
            try:
                if file:
                    file.write(data)
            except OSError:
                file = None

        try:
            yield keep
        finally:
            if file:
                with contextlib.suppress(OSError):
                    file.close()
                    if record.complete:
                        record.spool.finish(path)

    async def aclose(self) -> None:
        if self._pool:
            self._pool.active -= 1
            self._pool = None
        await self._stream.aclose()
        if self._path and not self._record.complete:
            self._path.with_suffix(".part").unlink(missing_ok=True)
