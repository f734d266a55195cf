"""Responses that are paid for and have no row yet, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO


class Spool:
    """Complete responses by question, as files of the run directory, until their row is durable.

    Written without syncing: they outlive the process, killed or not, which is what they are for. keys: values that must not
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
        for path in folder.iterdir():
            if path.suffix == ".part":  # of a process that was killed while one arrived
                path.unlink(missing_ok=True)
            elif path.suffix == ".http":
                self._kept.setdefault(_question(path), set()).add(path)

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
        """Forget what is kept for a question."""
        for path in self._kept.pop(question, ()):
            path.unlink(missing_ok=True)


def _question(path: Path) -> str:
    return path.name.rpartition("-")[0]
