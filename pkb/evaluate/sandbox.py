"""Isolation of a candidate group by the kernel's own means.

Levels: ``namespaces`` (own network with loopback only, pid, mount, ipc and uts namespaces; private /tmp, /dev/shm and /proc, the
rest of the file system read-only; another user id) and ``process`` (own session, scratch, resource limits, killed as a tree).
``none`` is for the trusted reference group. docs/integrity.md states what each level stops.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from pkb.evaluate import seccomp, watch

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_SCOPE_SIGNAL = 2
LEVELS = ("none", "process", "namespaces")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Policy:
    """What one group may do. scratch: its only writable folder beside /tmp and /dev/shm; hidden: folders it must not see."""

    level: str = "none"
    scratch: str = ""
    hidden: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)  # folders that stay readable inside hidden ones
    memory_bytes: int = 0
    processes: int = 0
    file_bytes: int = 0
    uid: int = 0  # where root starts the group, rank r runs as uid + r (all as uid on GPUs); 0: keep
    gpu: bool = (
        False  # CUDA's symmetric memory passes handles between ranks: they share a user and may be inspected by each other
    )

    def home(self, rank: int) -> str:
        """The rank's own folder inside the scratch, closed to the other ranks: its HOME and, on CPU ranks, its TMPDIR."""
        return os.path.join(self.scratch, f"rank{rank}")

    def temporary(self, rank: int) -> str:
        """The rank's TMPDIR; one for all on GPUs, where symmetric memory passes handles over sockets that lie there."""
        return os.path.join(self.scratch, "tmp") if self.gpu else self.home(rank)

    @property
    def bounded(self) -> bool:
        """Whether what the group writes lies on a file system of its own, of limited size (seen from outside only by root)."""
        return self.level == "namespaces" and self.uid > 0 and self.file_bytes > 0

    @property
    def extensions(self) -> str:
        """The folder that all ranks of the group may write, where extensions are built once for all."""
        return os.path.join(self.scratch, "extensions")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def keep_to_itself() -> None:
    """Have the kernel let nobody of the same user read or write this process's memory, or take its descriptors."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def available() -> str:
    """The best level that this system allows, found by trying in a child."""
    pid = os.fork()
    if pid == 0:
        try:
            enter(Policy(level="namespaces"))
            os._exit(0)
        except OSError:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return "namespaces" if status == 0 else "process"


def enter(policy: Policy) -> str:
    """Called by the supervisor: leave the host's namespaces. Returns the level; raises OSError where the system refuses."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if policy.level != "namespaces":
        return policy.level
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    uid, gid = os.getuid(), os.getgid()
    if uid != 0:
        flags |= CLONE_NEWUSER
    _call("unshare", flags)
    if uid != 0:
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or these files belong to root
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    _loopback_up()
    return policy.level


def furnish(policy: Policy, ranks: int = 0) -> None:
    """Called by pid 1 of the new pid namespace: build the file system that the candidate sees.

    Read-only but for its scratch, /tmp and /dev/shm, which are its own; hidden folders are empty except for what is kept.
    ranks: how many will have a home in the scratch.
    """
    if policy.level != "namespaces":
        return
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    with contextlib.suppress(OSError):
        socket.sethostname("pkb")
    for point in _mount_points():
        with contextlib.suppress(OSError):  # a mount under another one, or one that a user namespace may not touch
            _mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    scratch = os.path.realpath(policy.scratch)
    kept = {path: os.open(path, os.O_PATH) for path in [*map(os.path.realpath, policy.keep), scratch] if os.path.isdir(path)}
    hidden = [os.path.realpath(p) for p in (*_PRIVATE, *policy.hidden, *closed_ancestors(kept)) if os.path.isdir(p)]
    outer: list[str] = []
    for folder in sorted(dict.fromkeys(hidden), key=len):
        if not any(_inside(folder, above) for above in [*kept, *outer]):
            outer.append(folder)
    for folder in outer:
        _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={_room(folder, policy)}")
    for path in sorted(kept, key=len):
        if any(_inside(path, folder) for folder in outer) or path == scratch:
            os.makedirs(path, exist_ok=True)
            _mount(f"/proc/self/fd/{kept[path]}", path, None, MS_BIND | MS_REC)
            mode = 0 if path == scratch else MS_RDONLY
            _mount(None, path, None, MS_REMOUNT | MS_BIND | MS_NOSUID | mode)
    for folder in hidden:
        if folder not in outer and os.path.isdir(folder) and not any(_inside(path, folder) for path in kept):
            _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=755,size=4096")
    for folder in outer:
        if folder not in _PRIVATE:
            with contextlib.suppress(OSError):
                _mount(None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for descriptor in kept.values():
        os.close(descriptor)
    if policy.bounded:
        _bound_scratch(policy, ranks)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)


def _bound_scratch(policy: Policy, ranks: int) -> None:
    """Put all folders of the scratch that ranks may write on one file system in memory: many files fill no more than one may."""
    whole = os.path.join(policy.scratch, SHARED[0])
    _mount("tmpfs", whole, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=755,size={policy.file_bytes},nr_inodes={INODES}")
    descriptor = os.open(whole, os.O_PATH)
    for name, mode in [*((n, 0o777) for n in SHARED), *((os.path.basename(policy.home(r)), 0o700) for r in range(ranks))]:
        part, place = f"/proc/self/fd/{descriptor}/{name}", os.path.join(policy.scratch, name)
        os.mkdir(part)
        os.chmod(part, mode)
        os.makedirs(place, exist_ok=True)
        _mount(part, place, None, MS_BIND)
    os.close(descriptor)


#: Folders of the scratch that all ranks of a group may write, and the most files that a group may have there.
SHARED = ("tmp", "extensions", "triton")
INODES = 1 << 18
_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")


def excess_bytes(policy: Policy, pids: list[int]) -> int:
    """Called by init: the memory that the group holds if that is more than it may, else 0. pids: its ranks."""
    if policy.level == "namespaces":
        everyone = {int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"}
        mounts: tuple[str, ...] = (*_PRIVATE, *([os.path.join(policy.scratch, SHARED[0])] if policy.bounded else []))
    else:
        everyone, mounts = {*pids, *_descendants(os.getpid())}, ()
    for exact in (False, True):
        held = watch.held_bytes(everyone, mounts, exact)
        if held <= policy.memory_bytes:
            return 0
    return held


def _room(folder: str, policy: Policy) -> int:
    if folder == "/dev/shm":
        return policy.memory_bytes or 1 << 30
    return max(policy.file_bytes, 1 << 20) if folder in _PRIVATE else 1 << 20


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def closed_ancestors(paths: Iterable[str]) -> list[str]:
    """Folders on the way to ``paths`` that another user may not pass (a home directory, as a rule)."""
    found = []
    for path in paths:
        parts = path.strip("/").split("/")
        for n in range(1, len(parts)):
            folder = "/" + "/".join(parts[:n])
            if not os.stat(folder).st_mode & 0o001:
                found.append(folder)
                break
    return found


def confine(policy: Policy, rank: int) -> None:
    """Called by each rank before it does anything: limits, identity, no new privileges."""
    if policy.level == "none":
        return
    home, uid = policy.home(rank), policy.uid + (0 if policy.gpu else rank)
    os.makedirs(home, 0o700, exist_ok=policy.bounded)
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", "1000")  # when memory runs out, the kernel takes candidates first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if policy.memory_bytes and not policy.gpu:
        resource.setrlimit(resource.RLIMIT_DATA, (policy.memory_bytes, policy.memory_bytes))
    if policy.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (policy.file_bytes, policy.file_bytes))
    if policy.processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (policy.processes, policy.processes))
    if policy.uid and os.getuid() == 0:
        os.chown(home, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _drop_capabilities()
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(PR_SET_DUMPABLE, int(policy.gpu), 0, 0, 0)
    die_with_parent()  # changing the user id clears it
    os.chdir(home)
    seccomp.install(policy.gpu)
    if not policy.gpu:
        _keep_signals_inside()


def _keep_signals_inside() -> None:
    """Let this process signal only itself and what it starts (Landlock, where the kernel has it: 6.12 on).

    Users and pid namespaces do the same where there are any. Landlock also bars siblings from each other's descriptors, which is why
    ranks on GPUs go without.
    """
    create, restrict, version = 444, 446, 1
    if _libc.syscall(create, None, 0, version) >= 6:
        ruleset = _libc.syscall(create, struct.pack("<3Q", 0, 0, _LANDLOCK_SCOPE_SIGNAL), 24, 0)
        if ruleset < 0 or _libc.syscall(restrict, ruleset, 0) != 0:
            raise OSError(ctypes.get_errno(), "signals could not be kept inside")
        os.close(ruleset)


def _drop_capabilities() -> None:
    """Give up every capability for good: root of a user namespace has all of them inside it."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("<Ii", _CAPABILITY_VERSION, 0), struct.pack("<6I", 0, 0, 0, 0, 0, 0)
    if _libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def signal_group(policy: Policy, ranks: list[int], number: int) -> None:
    """Called by init: signal every process of the group but itself."""
    if policy.level == "namespaces":
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        return
    reached: set[int] = set()
    while missed := {*ranks, *_descendants(os.getpid())} - reached:  # some are born while one looks
        for pid in missed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        reached |= missed


def end_descendants() -> None:
    """Called by the supervisor, a subreaper, after init has ended: kill and reap whatever was left behind."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def end_session(leader: int) -> None:
    """Kill every process of the session that ``leader`` began, whatever process groups they have made for themselves."""
    while True:
        found = False
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    with open(f"/proc/{entry}/stat") as file:
                        state, _, _, session = file.read().rpartition(")")[2].split()[:4]
                    if int(session) == leader and state not in "ZX":
                        os.kill(int(entry), signal.SIGKILL)
                        found = True
        if not found:
            return


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        tasks: list[str] = []
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"/proc/{parent}/task")
        for task in tasks:
            with contextlib.suppress(OSError):  # threads end while one looks
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    children = [int(c) for c in file.read().split()]
                found += children
                queue += children
    return found


def _loopback_up() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING


def _mount_points() -> list[str]:
    with open("/proc/self/mounts") as file:
        points = [line.split()[1].encode().decode("unicode_escape") for line in file]
    return [p for p in points if not p.startswith(("/proc", "/sys", "/dev"))]


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encode = lambda s: None if s is None else s.encode()  # noqa: E731
    if _libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {target}: {os.strerror(code)}")


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
