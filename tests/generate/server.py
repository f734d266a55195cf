"""A provider on loopback that speaks the OpenAI protocol, well or badly, as each request's script says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CODE = "```python\ndef solution(tensor):\n    return tensor\n```\n"
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 40,
    "total_tokens": 140,
    "prompt_tokens_details": {"cached_tokens": 20},
    "completion_tokens_details": {"reasoning_tokens": 10},
}


@dataclass
class Request:
    """What the server saw: headers in lower case, the JSON body, when it came, and whether the client stayed to the end."""

    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    left_early: bool = False
    number: int = 0


@dataclass(frozen=True)
class Reply:
    """One response. ``chunks`` are written one after the other with ``pause`` seconds between; ``then``: close, reset or stall."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: tuple[bytes, ...] = ()
    pause: float = 0.0
    then: str = "close"
    length: int | None = None  # content-length, when it is to be other than the truth
    before: float = 0.0


Script = Callable[[Request], Reply]


def completion(content: str | None = CODE, finish: str = "stop", usage: Any = USAGE, **message: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}],
    }
    return {**body, "usage": usage} if usage is not None else body


def answer(*args: Any, **kwargs: Any) -> Reply:
    """A response that is one JSON document."""
    return json_reply(completion(*args, **kwargs))


def json_reply(body: Any, status: int = 200, headers: dict[str, str] | None = None, before: float = 0.0) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(
        status, {"content-type": "application/json", "x-request-id": "req-1", **(headers or {})}, (data,), before=before
    )


def error(status: int, message: str = "no", code: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    """An error as OpenAI sends it."""
    return json_reply({"error": {"message": message, "code": code, "type": "x", **fields}}, status, headers)


def stream(
    pieces: Any = (CODE,),
    finish: str | None = "stop",
    usage: Any = USAGE,
    extra: tuple[dict[str, Any], ...] = (),
    done: bool = True,
    pause: float = 0.0,
    then: str = "close",
    key: str = "content",
) -> Reply:
    """A response that is a stream of events; ``extra`` events come before the finish."""
    events = [_delta({"role": "assistant", "content": ""}), *(_delta({key: piece}) for piece in pieces), *extra]
    if finish:
        events.append(_delta({}, finish))
    if usage:
        events.append({**_delta({}), "choices": [], "usage": usage})
    data = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    if done:
        data.append(b"data: [DONE]\n\n")
    return Reply(200, {"content-type": "text/event-stream", "x-request-id": "req-1"}, tuple(data), pause, then)


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


class Server:
    """Runs in a thread; ``script`` gives the reply to each request. A context manager."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @classmethod
    def replying(cls, *replies: Reply) -> Server:
        """Gives these replies in order, the last one for ever."""
        return cls(lambda request: replies[min(request.number, len(replies) - 1)])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Server:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *args: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048))
        self.port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request: what happens to a connection is part of what is tested."""
        self.connections += 1
        try:
            await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(headers, json.loads(body or b"{}"), self._loop.time(), number=len(self.requests))
        self.requests.append(request)
        gone = asyncio.ensure_future(reader.read())  # ends when the client does
        reply = self.script(request)
        await asyncio.wait({gone}, timeout=reply.before)
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in reply.headers.items()), "connection: close"]
        if reply.headers.get("content-type") != "text/event-stream":
            length = sum(map(len, reply.chunks)) if reply.length is None else reply.length
            lines.append(f"content-length: {length}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        sent = 0
        for chunk in reply.chunks:
            if gone.done():
                break
            writer.write(chunk)
            await writer.drain()
            sent += 1
            if reply.pause:
                await asyncio.wait({gone}, timeout=reply.pause)
        if reply.then == "reset":
            writer.transport.abort()
        if reply.then == "stall":
            await asyncio.wait({gone}, timeout=60)
        request.left_early = gone.done() and (sent < len(reply.chunks) or reply.then == "stall")
        gone.cancel()
