"""What really goes over the network: every request that litellm sends passes through a transport of ours.

litellm renames and drops parameters, turns foreign answers into its own form and loses parts on the way. Here the request is
recorded as it is sent, the response as it arrives, and a complete response is kept on disk before anyone reads it (the spool):
a driver that is killed afterwards finds it there when it asks the same question again, and nobody is billed twice.
The transport also sees to it that one call is one request: whatever a client library thinks of retries, they are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from pkb.generate.events import Events
from pkb.generate.facts import Facts, facts_of_json
from pkb.generate.spool import Spool

#: Seconds to establish a connection; how long an answer may take is the caller's business.
CONNECT_SECONDS = 30.0
#: Connections of one pool.
POOL_SIZE = 8
#: Bytes of a response; a longer one is no answer, and is left.
MOST_BYTES = 128 * 2**20
#: Seconds for what follows an end, or an error, in a stream: the count of what is billed.
REST_SECONDS = 5.0
KEPT_HEADERS = ("content-type", "content-encoding", "x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
_current: ContextVar[Exchange | None] = ContextVar("pkb_exchange", default=None)


@dataclass
class Exchange:
    """One call's request and response, filled in as they happen.

    question: names the question in the spool; empty: nothing is kept. request: the JSON body as sent, without the conversation
    itself. status: of HTTP, 0 before there is one. body: of a response that is not a stream; events: of one that is.
    carried: the provider's requests are known to pass through our transport. idle_seconds: the longest silence of a stream.
    replayed: the response came from the spool.
    """

    question: str = ""
    spool: Spool | None = None
    carried: bool = True
    idle_seconds: float = 60.0
    url: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    requests: int = 0
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    streamed: bool = False
    body: bytearray = field(default_factory=bytearray)
    events: Events = field(default_factory=Events)
    facts: Facts = field(default_factory=Facts)
    complete: bool = False
    cut: str = ""  # what ended the connection before the response was whole
    replayed: bool = False
    seconds: float | None = None  # of the original call, when replayed
    _server: tuple[str, bytes, str] = ("", b"", "")

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
        """Note a request; raises httpx.TransportError when this call has sent one already.

        A redirection within the same server is followed when it keeps the method. Another server would be sent the key, for
        some providers, and a question that is asked with GET is none.
        """
        server = (request.url.scheme, request.url.netloc, request.method)
        if self.requests and not (300 <= self.status < 400 and server == self._server):
            raise httpx.TransportError("a second request within one call was stopped; retries are made elsewhere")
        self._server = server
        self.requests += 1
        self.body, self.events, self.facts, self.complete = bytearray(), Events(), Facts(), False
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
            self.body += data
            if not _STREAM.match(self.body, 0, 64) or "content-encoding" in self.headers:
                return
            self.streamed, data = True, bytes(self.body)  # whatever its content type says
            self.body = bytearray()
        self.events.feed(data)
        self.facts = self.events.facts

    def end(self) -> None:
        """The response is complete: read what it says about itself."""
        if self.body and "content-encoding" in self.headers:
            with contextlib.suppress(httpx.DecodingError):
                self.body = bytearray(httpx.Response(200, headers=self.headers, content=bytes(self.body)).content)
        self.streamed = self.streamed or bool(_STREAM.match(self.body, 0, 64))
        if self.streamed:
            self.events.feed(bytes(self.body))
            self.events.end()
            self.body, self.facts = bytearray(), self.events.facts
        else:
            self.facts = facts_of_json(bytes(self.body))
        self.complete = True


@contextlib.contextmanager
def exchange(**settings: Any) -> Iterator[Exchange]:
    """Record the one request that the block makes; settings: the first fields of Exchange."""
    record = Exchange(**settings)
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
        await request.aread()  # that of a redirection comes unread
        record.begin(request)
        path = record.spool.path(record.question, request.content) if record.spool and record.question else None
        if record.spool and path and (kept := record.spool.read(path)):
            return self._kept(record, path, *kept)
        request.headers["accept-encoding"] = "identity"  # recorded as it comes
        started = time.monotonic()
        pool.active += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException as error:
            pool.active -= 1
            record.cut = _said(error)
            raise
        unpack = _unpacker(response.headers)
        record.status, record.headers = response.status_code, httpx.Headers(response.headers)
        record.streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        if response.status_code >= 400:
            response.headers["x-should-retry"] = "false"  # the OpenAI library heeds it, even where litellm loses max_retries
        kept_at = path if response.status_code == 200 else None
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Tee(response.stream, record, kept_at, started, pool, unpack),  # type: ignore[arg-type]
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
    """A response's bytes on their way, seen by the record and kept in the spool.

    Whoever reads goes on where the last reader stopped: the OpenAI library reads the end of a stream with a second one.
    """

    def __init__(
        self, stream: Any, record: Exchange, path: Path | None, started: float, pool: _Pool, unpack: _Unpacker | None
    ) -> None:
        self._stream, self._record, self._path, self._started = stream, record, path, started
        self._pool: _Pool | None = pool
        self._unpack = unpack
        self._chunks = aiter(stream)
        self._bytes = 0
        self._over = False  # at its end, or cut off
        self._file: BinaryIO | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begin()
        while (data := await self._next()) is not None:
            yield data

    async def aclose(self) -> None:
        if self._pool:
            self._pool.active -= 1
            self._pool = None
        try:
            with contextlib.suppress(TimeoutError, httpx.HTTPError, RuntimeError):  # a RuntimeError: somebody is reading
                await self._rest()
        finally:
            await self._stream.aclose()
            self._close_file()

    async def _rest(self) -> None:
        """Read on where a reader gives up a stream: litellm does so at events that it cannot take, and at an end that says it
        failed, which the count of what is billed follows. All of it is paid for. Not when the call itself was given up.
        """
        record, task = self._record, asyncio.current_task()
        if not record.streamed or record.status != 200 or (task and task.cancelling()):
            return
        over_at: float | None = None
        while not (record.complete or self._over):
            if over_at is None and (record.facts.finish_reason or record.facts.error is not None):
                over_at = time.monotonic() + REST_SECONDS
            async with asyncio.timeout(record.idle_seconds if over_at is None else over_at - time.monotonic()):
                await self._next()

    async def _next(self) -> bytes | None:
        """The next bytes; None at the end."""
        if self._over:
            return None
        try:
            data = await anext(self._chunks)
            if self._unpack:
                data = self._unpack(data, MOST_BYTES - self._bytes + 1)
            self._bytes += len(data)
            if self._bytes > MOST_BYTES:
                raise httpx.RemoteProtocolError(f"the answer was left after {MOST_BYTES >> 20} MiB")
        except StopAsyncIteration:
            self._over = True
            self._end()
            return None
        except BaseException as error:
            self._over = True
            self._record.cut = _said(error)
            raise
        record = self._record
        if not record.complete:
            record.feed(data)
            self._keep(data)
            if record.facts.done:  # nothing can follow, and connections may stay open for long
                self._end()
        return data

    def _begin(self) -> None:
        record, path = self._record, self._path
        if self._file or record.complete or self._over or path is None or record.spool is None:
            return
        headers = {k: v for k, v in record.headers.items() if k in KEPT_HEADERS}
        # The time is that of the headers for a stream, of the whole for the rest, near enough for a record of a kill.
        head = {"status": record.status, "headers": headers, "seconds": time.monotonic() - self._started}
        with contextlib.suppress(OSError):
            self._file = record.spool.create(path, head)

    def _keep(self, data: bytes) -> None:
        """Write what arrived. A full disk costs the spare copy, not the answer."""
        try:
            if self._file:
                self._file.write(data)
        except OSError:
            self._file = None
            if self._path:
                self._path.with_suffix(".part").unlink(missing_ok=True)

    def _end(self) -> None:
        if not self._record.complete:
            self._record.end()
            self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is None or self._path is None or self._record.spool is None:
            return
        with contextlib.suppress(OSError):
            file.close()
            if self._record.complete:
                self._record.spool.finish(self._path)
            else:
                self._path.with_suffix(".part").unlink(missing_ok=True)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class _Unpacker:
    """Undoes gzip or deflate, which some servers send without being asked; never more than the bytes that are wanted at a time.

    What turns out to be packed in neither way is taken as it is: there are servers that only say so.
    """

    def __init__(self) -> None:
        self._left = [zlib.decompressobj(zlib.MAX_WBITS | 32), zlib.decompressobj(-zlib.MAX_WBITS)]
        self._begun = False

    def __call__(self, data: bytes, most: int) -> bytes:
        """Raises httpx.DecodingError for what is damaged."""
        while self._left:
            try:
                found = self._left[0].decompress(data, most)
            except zlib.error as error:
                if self._begun:
                    raise httpx.DecodingError(f"the answer cannot be unpacked: {error}") from error
                del self._left[0]
                continue
            self._begun = self._begun or bool(found)
            return found
        return data


def _unpacker(headers: httpx.Headers) -> _Unpacker | None:
    """For a packed response, whose headers then say that it is not."""
    if headers.get("content-encoding", "").strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return None
    for name in ("content-encoding", "content-length"):
        headers.pop(name, None)
    return _Unpacker()
