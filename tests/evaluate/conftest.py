"""One evaluator for all tests: a judgement then costs fractions of a second."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from pkb import config, problem
from pkb.evaluate.node import Evaluator
from pkb.evaluate.ranks import RankGroup
from pkb.records import Evaluation, Job

QUICK = (
    "evaluation.timing.enabled=false",
    "evaluation.trials=3",
    "evaluation.limits.call_seconds=4",
    "evaluation.limits.timing_seconds=10",
    "evaluation.limits.processes=64",
    f"evaluation.limits.scratch_bytes={64 << 20}",
)


class Node:
    """An evaluator on CPU ranks, and what of it can be seen from outside."""

    def __init__(self, *overrides: str) -> None:
        self.base = (*QUICK, *overrides)
        self.evaluator = Evaluator(config.load(self.base), name="test")
        self.shm = set(os.listdir("/dev/shm"))
        self.candidate: RankGroup | None = None
        take = self.evaluator._take_candidate

        def noting() -> RankGroup:
            self.candidate = take()
            return self.candidate

        self.evaluator._take_candidate = noting

    def judge(self, source: str, problem_id: int | str = 1, *overrides: str, **job) -> Evaluation:
        """The judgement of a candidate, under overrides for this one."""
        wanted = config.load((*self.base, *overrides))
        keep, self.evaluator.config = self.evaluator.config, wanted
        size = wanted.size
        try:
            fields = {"preset": size.preset, "dims": size.dims, "dtype": wanted.dtype, **job}
            return self.evaluator.evaluate(Job(problem.resolve(problem_id), source, wanted.ranks, device="cpu", **fields))
        finally:
            self.evaluator.config = keep

    @property
    def zygote(self) -> int:
        return self.evaluator._zygote.process.pid

    def reference_ranks(self) -> list[int]:
        return children(self.evaluator._reference.pid)

    def left_behind(self) -> list[str]:
        """Every process, folder and shared segment that belongs to neither the reference group nor the spare group."""
        if self.evaluator._spare is None:
            return []  # nothing has been judged yet
        self.evaluator._settle()
        spare, reference = self.evaluator._spare.result(), self.evaluator._reference
        known = {spare.pid} | ({reference.pid} if reference else set())
        known |= {parent(pid) for pid in known} | {c for pid in known for c in children(pid)}
        found = [f"process {pid}: {command(pid)}" for pid in descendants(self.zygote) if pid not in known]
        found += [f"folder {p}" for p in self.evaluator.root.glob("scratch-*") if p != Path(spare.scratch)]
        return found + [f"segment {name}" for name in set(os.listdir("/dev/shm")) - self.shm if name.startswith("pkb")]


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # threads end while one looks
            found += [int(c) for c in task.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "ended"


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    node = Node(f"evaluation.cache_dir={tmp_path_factory.mktemp('builds')}")
    with node.evaluator:
        yield node


@pytest.fixture(scope="session")
def reference():
    """The text of a problem's reference."""
    return lambda ident: problem.load(ident).reference_source


ALLREDUCE = """
import torch, torch.distributed as dist
from pkb import symm
_kept = {}
def buffer(tensor):
    n = max(tensor.numel(), 1)
    if tensor.dtype not in _kept or _kept[tensor.dtype][0].numel() < n:
        t = symm.empty(n, dtype=tensor.dtype, device="cpu")
        _kept[tensor.dtype] = t, symm.rendezvous(t, dist.group.WORLD)
    return _kept[tensor.dtype]
def solution(tensor):
    mine, handle = buffer(tensor)
    n = tensor.numel()
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = sum(handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size))
    handle.barrier()
    return out.reshape(tensor.shape)
"""


@pytest.fixture(scope="session")
def allreduce():
    """A right candidate for problem 1 through symmetric memory."""
    return ALLREDUCE
