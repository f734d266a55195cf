"""Functions run on forked gloo ranks, for tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

_FORK = multiprocessing.get_context("fork")


class Ranks:
    """``world_size`` processes in one gloo group, each running ``function(rank, world_size, *args)`` once.

    As a context manager it kills what still runs at the end.
    """

    def __init__(self, world_size: int, function: Callable[..., Any], *args: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_main, args=(rank, world_size, port, theirs, function, args), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def results(self, timeout: float = 60.0) -> list[Any]:
        """What each rank returned, by rank; AssertionError with the traceback of the first rank that failed."""
        end = time.monotonic() + timeout
        answers: dict[int, Any] = {}
        while missing := {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in answers}:
            ready = wait(list(missing), max(end - time.monotonic(), 0))
            assert ready, f"ranks {sorted(missing.values())} did not answer within {timeout} s"
            for pipe in ready:
                ok, answer = pipe.recv()
                assert ok, f"rank {missing[pipe]} failed:\n{answer}"
                answers[missing[pipe]] = answer
        return [answers[rank] for rank in range(len(self.pipes))]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exc: Any) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def run(world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """``function(rank, world_size, *args)`` on every rank: what each returned, by rank."""
    with Ranks(world_size, function, *args) as ranks:
        return ranks.results(timeout)


def _main(rank: int, world_size: int, port: int, pipe: Any, function: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        answer = (True, function(rank, world_size, *args))
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send(answer)
    pipe.poll(None)  # stay until the parent has read every answer: it closes the pipe or kills
    os._exit(0)
