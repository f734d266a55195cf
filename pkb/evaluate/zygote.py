"""The zygote: one process per evaluator that has imported torch and forks groups of ranks on request.

Nothing untrusted ever runs in it. Forking makes a group start in milliseconds instead of the seconds that importing takes. For
each group it forks a *supervisor*, which enters the sandbox's namespaces and forks an *init* (pid 1 of the group's pid namespace),
which forks the ranks. Killing init ends every process of the group, daemons included; the supervisor closes its end of the
group's control socket only when all of them are gone, so end-of-file there means that nothing is left.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import warnings
from typing import Any

from pkb.evaluate import sandbox, watch, wire

#: What a rank runs, by the role of its group.
_ROLES = {
    "reference": "pkb.evaluate.reference_rank",
    "candidate": "pkb.evaluate.candidate_rank",
    "audit": "pkb.evaluate.audit_rank",
}


def main(control_fd: int) -> None:
    """Serve fork requests until the evaluator closes its end (or dies)."""
    sandbox.die_with_parent()
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        sandbox.keep_to_itself()  # and what it forks; CUDA's ranks must be able to take each other's handles
    import torch
    import torch.distributed._symmetric_memory
    import torch.utils.cpp_extension  # imported ahead, so that forked ranks need not

    import pkb.evaluate.candidate_rank
    import pkb.evaluate.reference_rank  # noqa: F401

    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401
        with contextlib.suppress(ImportError):
            import sympy  # noqa: F401  # the first buffer of torch's symmetric memory does, for 2.6 s (docs/measurements.md)

    # CUDA's library starts a thread of its own when torch looks for a device; nothing that it holds is needed after a fork
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    torch.set_num_threads(1)
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors report over sockets; nobody waits for them here
    wire.send_message(control, ready=os.getpid())
    while True:
        try:
            request = wire.receive_message(control)
        except (wire.WireError, OSError):
            os._exit(0)
        _, fds, _, _ = socket.recv_fds(control, 1, 64)
        if os.fork() == 0:
            control.close()
            try:
                _supervise(request, fds)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _supervise(request: dict[str, Any], fds: list[int]) -> None:
    """fds: the group's control socket, the log pipe, then one control socket per rank."""
    os.setsid()
    sandbox.die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    group = socket.socket(fileno=fds[0])
    policy = sandbox.Policy(**request["sandbox"])
    try:
        level = sandbox.enter(policy)
    except OSError as error:
        wire.send_message(group, failed=f"sandbox: {error}")
        os._exit(1)
    init = os.fork()
    if init == 0:
        try:
            _init(request, policy, group, fds[1], fds[2:])
        except BaseException as error:
            with contextlib.suppress(OSError):
                wire.send_message(group, failed=f"{type(error).__name__}: {error}")
        finally:
            os._exit(1)
    wire.send_message(group, pid=init, level=level)
    for fd in fds[1:]:
        os.close(fd)
    os.waitpid(init, 0)
    sandbox.end_descendants()
    os._exit(0)


def _init(request: dict[str, Any], policy: sandbox.Policy, group: socket.socket, log_fd: int, rank_fds: list[int]) -> None:
    """Pid 1 of the group: fork the ranks, reap, freeze and thaw on request, end with the control socket."""
    sandbox.die_with_parent()
    sandbox.furnish(policy, len(rank_fds))
    sandbox.keep_to_itself()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    ranks: dict[int, int] = {}
    for rank, fd in enumerate(rank_fds):
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            group.close()
            for other in [*rank_fds, wake_read, wake_write]:
                if other != fd:
                    os.close(other)
            _rank(request, policy, rank, fd, log_fd)
        ranks[pid] = rank
    for fd in [*rank_fds, log_fd]:
        os.close(fd)
    wire.send_message(group, ranks=[pid for pid in ranks])
    watching = policy.level != "none" and policy.memory_bytes > 0
    while True:
        watched: list[Any] = [group, wake_read]
        readable = select.select(watched, [], [], watch.PERIOD_S if watching else None)[0]
        if watching and not readable and (held := sandbox.excess_bytes(policy, list(ranks))):
            wire.send_message(group, memory=held)
            sandbox.signal_group(policy, list(ranks), signal.SIGKILL)
            watching = False
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap(group, ranks)
        if group in readable:
            try:
                command = wire.receive_message(group)
            except (wire.WireError, OSError):
                os._exit(0)
            if "signal" in command:
                sandbox.signal_group(policy, [pid for pid in ranks], command["signal"])
                wire.send_message(group, signalled=command["signal"])


def _reap(group: socket.socket, ranks: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in ranks:
            wire.send_message(group, exit=ranks.pop(pid), status=status)


def _rank(request: dict[str, Any], policy: sandbox.Policy, rank: int, control_fd: int, log_fd: int) -> None:
    sandbox.die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for fd in (null, log_fd):
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    if policy.scratch:
        os.environ.update(HOME=policy.home(rank), TMPDIR=policy.temporary(rank))
    control = socket.socket(fileno=control_fd)
    code = 1
    try:
        sandbox.confine(policy, rank)
        importlib.import_module(_ROLES[request["role"]]).serve(control, rank, request)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
