"""What an actor does before it takes work: forget credentials, and remove what a killed predecessor left behind.

Ray does not reap the processes that a killed actor had started. So every actor marks itself and, through its environment, all
its descendants with its own identity (pid namespace, pid and start time, which no later process can share), and keeps its temporary
files in a folder of that name. A new actor removes whatever bears the mark of an owner that no longer lives. Of owners in another pid
namespace, a container on the same machine, it cannot know; it leaves theirs alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

MARK = "PKB_OWNER"
_PREFIX = "pkb-owner-"
_CREDENTIAL = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd|credentials?)(_|$)|^(AWS|AZURE|GOOGLE|GCLOUD)_")


def forget_credentials() -> list[str]:
    """Take everything that looks like a credential out of this process's environment; returns the names."""
    names = [name for name in os.environ if _CREDENTIAL.search(name) and not name.startswith("RAY_")]
    for name in names:
        del os.environ[name]
    return names


def claim(name: str) -> str:
    """Forget credentials, mark this process and all it will start, give it a folder for temporary files, remove leftovers.

    Returns a line that says what was removed; empty if nothing was.
    """
    forget_credentials()
    identity = _identity(os.getpid())
    os.environ[MARK] = identity
    folder = _root() / f"{_PREFIX}{identity}"
    folder.mkdir(mode=0o711, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = os.fspath(folder)
    killed = kill_orphans()
    removed = remove_folders()
    parts = [f"{killed} processes" if killed else "", f"{removed} folders" if removed else ""]
    found = " and ".join(part for part in parts if part)
    return f"{name}: removed {found} of a dead owner" if found else ""


def kill_orphans(seconds: float = 10.0) -> int:
    """Kill every process whose owner is dead, and wait until they are gone; returns how many there were."""
    seen: set[int] = set()
    deadline = time.monotonic() + seconds
    while True:
        orphans = [pid for pid, owner in _marked() if _dead(owner)]
        if not orphans or time.monotonic() > deadline:
            return len(seen)
        for pid in orphans:
            seen.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.02)


def remove_folders() -> int:
    """Remove the temporary folders of dead owners; returns how many there were."""
    count = 0
    for folder in _root().glob(f"{_PREFIX}*"):
        if _dead(folder.name.removeprefix(_PREFIX)):
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


def release() -> None:
    """Remove this process's own folder, at the end of its life."""
    folder = _root() / f"{_PREFIX}{_identity(os.getpid())}"
    shutil.rmtree(folder, ignore_errors=True)


def log_path() -> str:
    """The file that this process's stderr goes to; empty when it is no file."""
    target = os.readlink("/proc/self/fd/2")
    return target if os.path.isfile(target) else ""


def _root() -> Path:
    """Where folders of owners lie; not TMPDIR, which ``claim`` itself changes and which differs between owners."""
    return Path("/tmp")


def _marked() -> list[tuple[int, str]]:
    """(pid, owner) of every process that bears a mark and is no zombie."""
    found: list[tuple[int, str]] = []
    needle = f"{MARK}=".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        owners = (line.removeprefix(needle).decode(errors="replace") for line in environment if line.startswith(needle))
        found += [(int(entry.name), owner) for owner in owners]
    return found


def _identity(pid: int) -> str:
    """Namespace, pid and start time (clock ticks since boot) of a process of our own pid namespace; empty when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{_namespace()}-{pid}-{fields[19]}"


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _dead(identity: str) -> bool:
    """Whether this owner is known not to live any more."""
    match = re.fullmatch(r"(\d+)-(\d+)-\d+", identity)
    return match is not None and match[1] == _namespace() and _identity(int(match[2])) != identity
