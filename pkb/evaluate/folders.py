"""Temporary folders that are removed even if their owner is killed: the next one to claim a folder removes those of the dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"


def claim(prefix: str, within: Path | None = None) -> tuple[Path, int]:
    """A new folder ``<prefix>...`` and the descriptor whose lock says that it is in use. within: default, the folder for such files.

    The kernel drops the lock when the process ends, however it ends; folders of this prefix without a lock are removed here.
    """
    base = within or Path(tempfile.gettempdir())
    for folder in base.glob(f"{prefix}*"):
        _remove_if_left(folder)
    nascent = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=base))  # has its name only once it has its lock
    descriptor = os.open(nascent / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.chmod(nascent, 0o711)
    folder = base / nascent.name.removeprefix(".")
    os.rename(nascent, folder)
    return folder, descriptor


def release(folder: Path, descriptor: int) -> None:
    """Remove the folder and let go of its lock."""
    _remove(folder)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    with _opened(folder / LOCK) as descriptor:
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        _remove(folder)


def _remove(folder: Path) -> None:
    """The lock goes last: by it the next one finds what is left when this is killed half way."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
