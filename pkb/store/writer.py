"""Writing a run directory: the one process that holds its lock appends rows that survive whatever happens next.

``RunStore.append`` returns when the rows are on disk: they go to a journal (one JSON line each, one fsync per call), and a
journal of 1,000 rows becomes an immutable Parquet part (see ``pkb.store.layout`` for the two rules that make every step safe
against a kill). Nothing is kept in memory but the rows of the growing part.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pkb.errors import UserError
from pkb.files import TEMPORARY_SUFFIX, is_full, replacing, sync_folder, write_all
from pkb.records import AttemptKey
from pkb.store.layout import PART_ROWS, Slot, table_listing
from pkb.store.rows import Row, key_of
from pkb.store.schema import SCHEMA_VERSION, TABLES

#: A journal also becomes a part at this size, so that long answers cannot fill the memory.
JOURNAL_BYTES = 64 * 2**20
#: Whoever asks who is writing (``pkb status``) holds the lock for an instant; that is no writer.
GLANCE_SECONDS = 0.5


class RunStore:
    """The writer of one run directory, which it creates. Use as a context manager, or call ``close``.

    Raises UserError if another process is writing there. The lock is the kernel's (flock) and ends with its holder, however it
    ends. Not safe for use from several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path / ".lock")
        try:
            self._tables = {name: _Table(path / name, name) for name in TABLES}
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def append(self, table: str, rows: Sequence[Row]) -> None:
        """Add rows (``pkb.store.rows``) to a table; durable on return.

        Raises ValueError for a row that the schema does not take, and OSError when the disk does not: nothing of the call is
        kept then, and it may be repeated (a call of more than 1,000 rows is kept in pieces of 1,000, and may not).
        """
        self._tables[table].append(rows)

    def supersede(self, table: str, keys: Iterable[AttemptKey]) -> int:
        """Take the rows of these keys out, because the attempts are made again; returns how many there were."""
        return self._tables[table].remove(set(keys))

    def close(self) -> None:
        """Turn the journals into parts, so that the directory holds nothing but Parquet, and release the lock.

        On a full disk they stay journals: their rows are safe and read, and the next writer makes parts of them.
        """
        if self._lock < 0:
            return
        try:
            for table in self._tables.values():
                table.close()
        finally:
            os.close(self._lock)
            self._lock = -1


class _Table:
    """One table's folder: its parts and the journal that grows."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._schema = TABLES[name]
        self._required = [f.name for f in self._schema if not f.nullable]
        self._rows: list[Row] = []  # of the journal
        self._base = 0  # rows of the part that the journal continues
        self._file: int | None = None
        self._size = 0
        folder.mkdir(exist_ok=True)
        self._recover()

    def _recover(self) -> None:
        """Finish what a killed writer left: temporary files, stale files, a journal with a torn last line."""
        for temporary in self._folder.glob(f".*{TEMPORARY_SUFFIX}"):
            temporary.unlink(missing_ok=True)
        found = table_listing(self._folder)
        for name in found.stale:
            (self._folder / name).unlink(missing_ok=True)
        self._next = Slot(found.last.number + 1)
        for slot in found.journals:
            rows, size = read_journal(self._folder / slot.journal)
            self._open(slot, rows, size)
            self._seal()
        parts = table_listing(self._folder).parts
        if parts:
            self._continue(parts[-1])

    def _continue(self, part: Slot) -> None:
        """Let new rows join the last part while it is small, so that restarts do not leave a trail of small parts."""
        import pyarrow.parquet as pq

        try:
            count = pq.read_metadata(self._folder / part.part).num_rows
        except Exception:  # damaged: the reader reports it, and its attempts are made again
            return
        if count < PART_ROWS:
            self._next, self._base = Slot(part.number, part.revision + 1), count

    def _open(self, slot: Slot, rows: list[Row], size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._folder / slot.journal, flags, 0o644)
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)
        sync_folder(self._folder)
        self._slot, self._rows, self._size = slot, rows, size
        if slot.revision:
            import pyarrow.parquet as pq

            previous = self._folder / Slot(slot.number, slot.revision - 1).part
            self._base = pq.read_metadata(previous).num_rows if previous.exists() else 0

    def append(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._check(row)
        for start in range(0, len(rows), PART_ROWS):
            self._append(rows[start : start + PART_ROWS])

    def _append(self, rows: Sequence[Row]) -> None:
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        if self._base + len(self._rows) + len(rows) > PART_ROWS:
            self._seal()
        if self._file is None:
            if self._base + len(rows) > PART_ROWS:
                self._next, self._base = Slot(self._next.number + 1), 0
            self._open(self._next, [], 0)
        assert self._file is not None
        try:
            write_all(self._file, data)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(data)
        self._rows += rows
        if self._base + len(self._rows) >= PART_ROWS or self._size >= JOURNAL_BYTES:
            with contextlib.suppress(OSError):  # the rows are safe; the next append tries again, and reports
                self._seal()

    def _check(self, row: Mapping[str, Any]) -> None:
        if set(row) != set(self._schema.names):
            missing = set(self._schema.names) ^ set(row)
            raise ValueError(f"row and schema differ in {', '.join(sorted(missing))}")
        for name in self._required:
            if row[name] is None:
                raise ValueError(f"column {name} may not be empty")

    def _seal(self) -> None:
        """Turn the journal into its part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._file is None:
            return
        slot = self._slot
        table = pa.Table.from_pylist(self._rows, schema=self._schema)
        previous = self._folder / Slot(slot.number, slot.revision - 1).part
        if slot.revision and previous.exists():
            table = pa.concat_tables([pq.read_table(previous, schema=self._schema), table])
        self._write_part(slot, table)
        os.close(self._file)
        (self._folder / slot.journal).unlink()
        if slot.revision:
            previous.unlink(missing_ok=True)
        self._file, self._rows, self._size, self._base = None, [], 0, 0
        self._next = Slot(slot.number + 1)

    def _write_part(self, slot: Slot, table: Any) -> None:
        import pyarrow.parquet as pq

        table = table.replace_schema_metadata({"pkb.schema_version": str(SCHEMA_VERSION)})
        with replacing(self._folder / slot.part) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    def remove(self, keys: set[AttemptKey]) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not keys:
            return 0
        self._seal()
        removed = 0
        key_columns = ["run", "model", "problem", "attempt", "turn"]
        for slot in table_listing(self._folder).parts:
            path = self._folder / slot.part
            try:
                rows = pq.read_table(path, columns=key_columns).to_pylist()
            except (pa.ArrowException, OSError):  # the reader reports damaged parts
                continue
            keep = [key_of(row) not in keys for row in rows]
            if all(keep):
                continue
            removed += keep.count(False)
            table = pq.read_table(path, schema=self._schema).filter(pa.array(keep))
            self._write_part(Slot(slot.number, slot.revision + 1), table)
            path.unlink()
        self._base = 0
        self._next = Slot(table_listing(self._folder).last.number + 1)
        return removed

    def close(self) -> None:
        try:
            self._seal()
        except OSError as error:
            if not is_full(error):
                raise


def read_journal(path: Path) -> tuple[list[Row], int]:
    """The whole rows of a journal and the bytes they take; a torn last line, which was never promised, is left out."""
    rows: list[Row] = []
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line))
        except ValueError:  # a block that the disk lost in a power cut; what follows it was written later
            break
        size += len(line)
    return rows, size


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + GLANCE_SECONDS
    while not (held := _try_lock(descriptor)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not held:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        os.close(descriptor)
        raise UserError(
            f"{path.parent} is being written by {holder or 'another process'}; wait for it or stop it, "
            f"and watch it with: pkb status {path.parent}"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return descriptor
