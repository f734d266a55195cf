"""What a run has paid for and has no row of yet, on disk: complete responses, and a note of every call."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

#: Ends the name of a file of notes.
NOTES = ".calls"


class Spool:
    """Complete responses and notes of calls by question, as files of the run directory, until their row is durable.

    Written without syncing: they outlive the process, killed or not, which is what they are for. The notes of a question are JSON
    lines, in order: ``asked`` before a call goes out, ``failed`` when it has brought no answer, ``recorded`` when all so far is in
    a row that does not count, so that the question will be asked again. keys: values that must not
    reach a file even if a provider echoes them. identity: of this run's folder, the same in every session.
    """

    def __init__(self, folder: Path, keys: Sequence[str] = ()) -> None:
        self._folder = folder
        self._keys = [key.encode() for key in keys]
        folder.mkdir(parents=True, exist_ok=True)
        identity = folder / "identity"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        self.identity = identity.read_text()
        self._kept: dict[str, set[Path]] = {}  # by question; the folder is this process's alone
        self._noted: set[str] = set()  # questions
        for path in folder.iterdir():
            if path.suffix == ".part":  # of a process that was killed while one arrived
                path.unlink(missing_ok=True)
            elif path.suffix == ".http":
                self._kept.setdefault(_question(path), set()).add(path)
            elif path.suffix == NOTES:
                self._noted.add(path.stem)

    def path(self, question: str, request: bytes) -> Path:
        """Where the response to this question, asked with this very request, is kept."""
        return self._folder / f"{question}-{hashlib.sha256(request).hexdigest()[:16]}.http"

    def read(self, path: Path) -> tuple[dict[str, Any], bytes] | None:
        """Head (status, headers, seconds) and body of a kept response; None when there is none or it is damaged."""
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            return json.loads(head), body
        except (OSError, ValueError):
            return None

    def create(self, path: Path, head: dict[str, Any]) -> BinaryIO:
        """Begin to keep a response."""
        file = os.fdopen(os.open(path.with_suffix(".part"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        file.write(json.dumps(head).encode() + b"\n")
        return file

    def finish(self, path: Path) -> None:
        """The response is complete."""
        part = path.with_suffix(".part")
        data = part.read_bytes() if self._keys else b""
        if any(key in data for key in self._keys):
            for key in self._keys:
                data = data.replace(key, b"*" * len(key))
            part.write_bytes(data)
        os.replace(part, path)
        self._kept.setdefault(_question(path), set()).add(path)

    def holds(self, question: str) -> bool:
        """Whether a response to this question is kept, whatever exactly was sent."""
        return question in self._kept

    def discard(self, question: str) -> None:
        """Forget the response that is kept for a question."""
        for path in self._kept.pop(question, ()):
            path.unlink(missing_ok=True)

    def note(self, question: str, *entries: dict[str, Any]) -> None:
        """Add to the notes of a question. A full disk costs the note, not the call."""
        text = "".join(json.dumps(entry, default=str) + "\n" for entry in entries)
        for key in self._keys:
            text = text.replace(key.decode(), "*" * len(key))
        self._noted.add(question)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(self._folder / f"{question}{NOTES}", flags, 0o600)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)

    def notes(self, question: str) -> list[dict[str, Any]]:
        """The notes of a question."""
        return list(_entries(self._folder / f"{question}{NOTES}")) if question in self._noted else []

    def all_notes(self) -> Iterator[list[dict[str, Any]]]:
        """The notes of every question that has any."""
        return (self.notes(question) for question in sorted(self._noted))

    def forget(self, question: str) -> None:
        """The question has its answer, and a row that tells all: nothing of it is needed any more."""
        self.discard(question)
        if question in self._noted:
            self._noted.remove(question)
            (self._folder / f"{question}{NOTES}").unlink(missing_ok=True)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):  # torn by a full disk
            yield json.loads(line)


def _question(path: Path) -> str:
    return path.name.rpartition("-")[0]
