"""A system-call filter for candidate ranks: a small BPF program, installed with prctl.

It denies what no kernel of a benchmark needs and what would reach beyond the rank: other processes' memory, mounts, namespaces,
kernel interfaces that bypass this very filter, clocks; and channels between processes that nothing counts: message queues, splicing,
sockets of families other than Unix and internet. Denied calls fail with EPERM (clone3 with ENOSYS, so that libc falls back to
clone, whose flags a filter can see).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

#: System call numbers on (x86_64, aarch64).
DENIED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
}
#: Denied on CPU ranks only: CUDA's symmetric memory passes handles between ranks with it.
PIDFD_GETFD = (438, 438)
CLONE, CLONE3 = (56, 220), (435, 435)
SOCKET = (41, 198)
#: (family, protocol) of the sockets that may be made: Unix; IPv4 and IPv6 with TCP, UDP and the family's default; netlink, by which
#: libraries ask the kernel about interfaces, devices and adapters, and which carries nothing between processes.
SOCKETS = ((1, 0), (2, 0), (2, 6), (2, 17), (10, 0), (10, 6), (10, 17), (16, 0), (16, 15), (16, 20))
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_AND = 0x54
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_UNIX, _SEQUENCED_PACKETS = 1, 5  # such sockets of the internet families are SCTP's
_X32 = 0x40000000  # system calls of the x32 convention, which the numbers above would miss
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def supported() -> bool:
    """Whether this machine's architecture is one that the filter knows."""
    return platform.machine() in ARCHITECTURES


def install(gpu: bool) -> None:
    """Install the filter for this process and all that it starts, for good.

    gpu: leave what CUDA needs. The caller has set no_new_privs. Raises OSError if the kernel refuses, does nothing on an
    unknown architecture.
    """
    if not supported():
        return
    program = _assemble(*ARCHITECTURES[platform.machine()], gpu)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    prog = _Program(len(program), ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(prog), 0, 0) != 0:
        code_number = ctypes.get_errno()
        raise OSError(code_number, f"the system-call filter was refused: errno {code_number}")


def _assemble(column: int, architecture: int, gpu: bool) -> list[tuple[int, int, int, int]]:
    """The BPF program as (code, jump if true, jump if false, operand)."""
    denied = [numbers[column] for numbers in DENIED.values()] + ([] if gpu else [PIDFD_GETFD[column]])
    head = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        head += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    body: list[tuple[int, int, int, int]] = []
    for number in denied:
        body += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    tail = [
        (_JUMP_EQUAL, 0, 1, CLONE3[column]),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 3, CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_SET, 0, 1, NEW_NAMESPACES),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    sockets = _sockets()
    return [*head, *body, (_JUMP_EQUAL, 0, len(sockets), SOCKET[column]), *sockets, *tail]


def _sockets() -> list[tuple[int, int, int, int]]:
    """Decide on a call of ``socket``."""
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    code = [
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_AND, 0, 0, 0xF),  # the type without its flags
        (_JUMP_EQUAL, 0, 3, _SEQUENCED_PACKETS),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, _UNIX),
        refuse,
    ]
    for family, protocol in SOCKETS:
        code += [
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_JUMP_EQUAL, 0, 3, family),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_JUMP_EQUAL, 0, 1, protocol),
            (_RETURN, 0, 0, _ALLOW),
        ]
    return [*code, refuse]
