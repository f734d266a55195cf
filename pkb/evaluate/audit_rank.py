"""A rank of ``pkb audit``: answers a problem's trials without doing the work, and judges those answers as any candidate's."""

from __future__ import annotations

import socket
import traceback
from typing import Any

import torch

from pkb import problem as problems
from pkb import table, tree
from pkb.evaluate import compare, vacuous, wire
from pkb.evaluate.seat import Seat, meet


def serve(control: socket.socket, rank: int, request: dict[str, Any]) -> None:
    """Meet the group, then obey the parent until it goes."""
    bench = Bench(meet(control, rank, request))
    while True:
        command = wire.receive_message(control)
        try:
            reply = getattr(bench, "do_" + command.pop("do"))(**command)
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            reply = {"failed": f"{type(error).__name__}: {error}"[:500], "traceback": text[-4000:]}
        wire.send_message(control, **reply)


class Bench:
    """The problem at hand and what is expected in each of its trials. Only our own code runs here."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.trials: list[tuple[list[Any], compare.Expected]] = []
        self.catalogue = {v.name: v for v in vacuous.catalogue()}

    def do_expect(
        self, name: str, preset: str, dims: dict[str, int], dtype: str, trials: list[int], keys: list[str]
    ) -> dict[str, Any]:
        """Draw the trials of a problem and compute what is expected of each."""
        problem = problems.load(name)
        shape = problem.shape(self.seat.world_size, preset, dtype, dims)
        self.solve = problem.reference()
        self.trials = []
        for trial, key in zip(trials, keys, strict=True):
            ctx = problem.context(shape, self.seat.rank, trial, bytes.fromhex(key), self.seat.device)
            inputs = list(problem.make_inputs(ctx))
            self.trials.append((inputs, compare.expect(problem, inputs, self._run, self.seat.device)))
        return {"expected": len(self.trials)}

    def do_try(self, name: str) -> dict[str, Any]:
        """Answer trial after trial until one is judged wrong on any rank.

        Says whether anything was skipped on this rank (``differs``) and what was ``wrong``, or that the answer ``raised``.
        """
        answer = self.catalogue[name].answer
        memory: dict[Any, Any] = {}
        differs = False
        for number, (inputs, expected) in enumerate(self.trials):
            live = self.seat.ready(tree.clone(inputs))
            seat = self.seat
            call = vacuous.Call(number, live, expected.output, expected.mutates, seat.rank, seat.world_size, self.solve, memory)
            try:
                output = answer(call)
            except Exception as error:  # the peers may now wait for this rank: the parent ends the group if they do
                return {"raised": f"trial {number}: {type(error).__name__}: {error}"[:300]}
            differs = differs or call.differs
            found = compare.judge(expected, _plain(output), _plain(table.told(inputs, live)))
            wrong = torch.tensor([0 if found.right else 1])
            torch.distributed.all_reduce(wrong)
            if wrong.item():
                return {"differs": differs, "wrong": f"trial {number}, rank {seat.rank}: {found.detail or 'right here'}"[:300]}
        return {"differs": differs, "wrong": ""}

    def _run(self, inputs: list[Any]) -> tuple[Any, Any]:
        live = self.seat.ready(inputs)
        output = self.solve(*live)
        return _plain(output), _plain(table.told(inputs, live))


def _plain(x: Any) -> Any:
    """A deep copy on the CPU without process groups."""

    def leaf(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return v.detach().to("cpu", copy=True)
        return None if isinstance(v, torch.distributed.ProcessGroup) else v

    return tree.map_leaves(leaf, x)
