"""The one writer of a run while it goes: rows, the attempts' logs, and the run's own events, in the order they came."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.errors import HarnessError
from pkb.files import append_whole, is_full
from pkb.records import AttemptKey
from pkb.store.rows import Row, key_of
from pkb.store.writer import RunStore

#: A full disk is waited for this long, in case somebody makes room; then the run stops, complete up to that point.
DISK_PATIENCE_SECONDS = 60.0
DISK_RETRY_SECONDS = 2.0
EVENTS = "events.jsonl"
_BATCH = 512


@dataclass
class _Entry:
    table: str
    row: Row | None
    log: Path
    lines: Sequence[Mapping[str, Any]]
    written: asyncio.Future[None] = field(repr=False)
    instead: bool = False


def log_path(key: AttemptKey) -> str:
    """Where the events of an attempt go, relative to the run directory: one file for all attempts of a model at a problem."""
    model = re.sub(r"[^\w.-]+", "_", key.model) or "_"
    return f"logs/{model}/{key.problem}.jsonl"


class Recorder:
    """Collects what is recorded at about the same time and makes it durable with one sync (group commit).

    notice: told, in one line, when the disk is full and when it no longer is.
    """

    def __init__(self, store: RunStore, notice: Callable[[str], None] = lambda text: None) -> None:
        self._store = store
        self._notice = notice
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue(maxsize=4 * _BATCH)
        self._pending: list[_Entry] = []  # taken from the queue and not written yet

    async def record(
        self, table: str, row: Row, log: str, lines: Sequence[Mapping[str, Any]] = (), instead: bool = False
    ) -> None:
        """Add a row and its attempt's events; durable on return. instead: it takes the place of the row of the same key."""
        await self._put(table, row, self._store.path / log, lines, instead)

    async def note(self, log: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add events to an attempt's log."""
        await self._put("", None, self._store.path / log, lines)

    async def event(self, what: str, **details: Any) -> None:
        """Add an event of the run itself: sessions, nodes, providers."""
        await self._put("", None, self._store.path / EVENTS, [stamped(what, **details)])

    async def _put(
        self, table: str, row: Row | None, log: Path, lines: Sequence[Mapping[str, Any]], instead: bool = False
    ) -> None:
        entry = _Entry(table, row, log, lines, asyncio.get_running_loop().create_future(), instead)
        await self._queue.put(entry)
        await asyncio.shield(entry.written)

    async def run(self) -> None:
        """Write until cancelled. Raises HarnessError when the disk stays full."""
        while True:
            if not self._pending:
                self._pending.append(await self._queue.get())
            self._gather()
            await self._write()

    async def drain(self) -> None:
        """Write what is still queued; for the end of a run, after ``run`` has been cancelled."""
        self._gather(10**9)
        if self._pending:
            await self._write(patience=0.0)

    def _gather(self, most: int = _BATCH) -> None:
        while len(self._pending) < most and not self._queue.empty():
            self._pending.append(self._queue.get_nowait())

    async def _write(self, patience: float | None = None) -> None:
        patience = DISK_PATIENCE_SECONDS if patience is None else patience
        since: float | None = None
        while True:
            writing = asyncio.ensure_future(asyncio.to_thread(self._write_now, self._pending))
            try:
                await asyncio.shield(writing)
                break
            except asyncio.CancelledError:  # the thread cannot be stopped; what it wrote must not be written again
                await asyncio.wait([writing])
                if writing.exception() is None:
                    self._settle()
                raise
            except OSError as error:
                if not is_full(error):
                    raise HarnessError(f"cannot write to {self._store.path}: {error}") from error
                if since is None:
                    since = time.monotonic()
                    if patience:
                        self._notice(f"the disk that holds {self._store.path} is full; waiting for room")
                if time.monotonic() - since >= patience:
                    raise HarnessError(
                        f"the disk that holds {self._store.path} is full; make room and run the same command to continue"
                    ) from error
                await asyncio.sleep(DISK_RETRY_SECONDS)
        if since is not None:
            self._notice("the disk has room again")
        self._settle()

    def _settle(self) -> None:
        for entry in self._pending:
            if not entry.written.done():
                entry.written.set_result(None)
        self._pending = []

    def _write_now(self, entries: list[_Entry]) -> None:
        """Logs first, then generations, then evaluations: no row points to a log or builds on an answer that is not there.

        May be repeated after a full disk: what was written is dropped from the entries, so that it is not written twice.
        """
        by_log: dict[Path, list[_Entry]] = {}
        for entry in entries:
            by_log.setdefault(entry.log, []).append(entry)
        for path, of_log in by_log.items():
            lines = [line for entry in of_log for line in entry.lines]
            if lines:
                append_whole(path, "".join(json.dumps(line, default=str) + "\n" for line in lines))
            for entry in of_log:
                entry.lines = ()
        for table in ("generations", "evaluations"):
            chosen = [entry for entry in entries if entry.table == table and entry.row is not None]
            self._store.supersede(table, [key_of(entry.row) for entry in chosen if entry.instead and entry.row is not None])
            if chosen:
                self._store.append(table, [entry.row for entry in chosen if entry.row is not None])
            for entry in chosen:
                entry.row = None


def stamped(what: str, **details: Any) -> dict[str, Any]:
    """One event, with the time (UTC, seconds since 1970)."""
    return {"time": round(time.time(), 3), "event": what, **details}


def of_attempt(key: AttemptKey, what: str, **details: Any) -> dict[str, Any]:
    """One event of an attempt, without the details that say nothing."""
    kept = {name: value for name, value in details.items() if value not in ("", None)}
    return stamped(what, attempt=key.attempt, turn=key.turn, **kept)
