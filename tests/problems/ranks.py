"""A pool of gloo ranks for tests: processes that start once and run many references."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from pkb import problem as problems
from pkb import table, tree
from pkb.draw import trial_key

SECRET = b"tests draw their inputs from this key"


def inputs_of(
    name: str, rank: int, world_size: int, *, trial: int = 0, preset: str = "smoke", dtype: str = "float32", dims=None
):
    """The inputs of one (rank, trial), groups still as GroupRef, tables as real tensors."""
    spec = problems.load(name)
    shape = spec.shape(world_size, preset, dtype, dims)
    return table.real(spec.make_inputs(spec.context(shape, rank, trial, trial_key(SECRET, spec.name, trial))), "cpu")


class RankPool:
    """``world_size`` gloo processes forked from this one; ``solve`` runs a reference on all of them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        fork = multiprocessing.get_context("fork")
        self._pipes, self._processes = [], []
        for rank in range(world_size):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_serve, args=(rank, world_size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def solve(self, name: str, *, given: list[list[Any]] | None = None, wide: bool = False, timeout: float = 60.0, **draw: Any):
        """Run the reference of ``name`` on every rank.

        given: inputs by rank; drawn with ``inputs_of(**draw)`` when absent. wide: upcast inputs to float64 first. Returns one
        namespace per rank: inputs (before), output, after (inputs after the call), seconds, peak_rss_growth (bytes).
        Raises AssertionError with the rank's traceback when one fails.
        """
        for rank, pipe in enumerate(self._pipes):
            pipe.send((name, None if given is None else given[rank], wide, draw))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(timeout), f"{name}: rank {rank} of {self.world_size} did not answer within {timeout} s"
            answers.append(pipe.recv())
        for rank, answer in enumerate(answers):
            assert not isinstance(answer, str), f"{name}: rank {rank} failed:\n{answer}"
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, world_size: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    groups: dict[tuple[int, ...], Any] = {tuple(range(world_size)): dist.group.WORLD}

    def group_of(ranks: tuple[int, ...]) -> Any:
        if ranks not in groups:
            groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return groups[ranks]

    while True:
        try:
            name, given, wide, draw = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send(_solve(name, given, wide, draw, rank, world_size, group_of))
        except BaseException:
            pipe.send(traceback.format_exc())


def _solve(name, given, wide, draw, rank, world_size, group_of):
    import time

    inputs = given if given is not None else inputs_of(name, rank, world_size, **draw)
    if wide:
        inputs = tree.upcast(inputs)
    live = tree.resolve_groups(tree.clone(inputs), group_of)
    solve = problems.load(name).reference()
    dist.barrier()
    start = time.perf_counter()
    output = solve(*live)
    seconds = time.perf_counter() - start

    def plain(x):
        return x.detach().clone() if isinstance(x, torch.Tensor) else (None if isinstance(x, dist.ProcessGroup) else x)

    return SimpleNamespace(
        inputs=inputs, output=tree.map_leaves(plain, output), after=tree.map_leaves(plain, live), seconds=seconds
    )
