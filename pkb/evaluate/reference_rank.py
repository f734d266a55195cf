"""A trusted rank: draws inputs, runs the reference, keeps the expected answers, compares what candidates return.

It holds seeds and expected outputs and never runs candidate code. Its answers to the parent are small JSON messages.
"""

from __future__ import annotations

import math
import socket
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pkb import problem as problems
from pkb import table, tree
from pkb.evaluate import chain, compare, diagnose, wire
from pkb.evaluate.seat import Seat, meet, sums_of
from pkb.evaluate.veil import veiled

CACHE_BYTES = 4 << 30
#: An answer may be this many times as large as what is expected, plus a slack, before it is refused unread.
ANSWER_FACTOR, ANSWER_SLACK = 16, 64 << 20


def serve(control: socket.socket, rank: int, request: dict[str, Any]) -> None:
    """Meet the group, then obey the parent until it goes."""
    seat = meet(control, rank, request)
    bench = Bench(seat)
    while True:
        command = wire.receive_message(control)
        try:
            reply = getattr(bench, "do_" + command.pop("do"))(**command)
        except wire.TooLong as error:
            reply = {"failed": "long", "error": str(error)}
        except (wire.WireError, ConnectionError) as error:  # what the counterpart sent, or no longer takes
            reply = {"failed": "link", "error": str(error)}
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            reply = {"failed": f"{type(error).__name__}: {error}"[:500], "traceback": text[-4000:]}
        wire.send_message(control, **reply)


class Bench:
    """Everything one trusted rank knows: the problem at hand, its trials, the timed sets, the link to the candidate."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.link: socket.socket | None = None
        self.cache: OrderedDict[str, compare.Expected] = OrderedDict()
        self.problem: problems.Problem = None  # type: ignore[assignment]
        self.shape: problems.Shape = None  # type: ignore[assignment]
        self.solve: Callable[..., Any] = lambda *inputs: None
        self.sets: list[list[Any]] = []
        self.draws: list[tuple[int, str]] = []  # (trial, key) of each set
        self.done: list[tuple[Any, Any]] = []  # (output, inputs afterwards) of each call of the last block
        self.rooms: dict[int, torch.Tensor] | None = None  # memory for tables, where the timed sets are veiled
        self.latest: Any = None  # the last output of that block
        self.theirs: list[tuple[Any, list[Any]]] = []
        self.calls: list[diagnose.Call] = []  # those judged last, in order: what a diagnosis needs
        self.right: dict[int, tuple[Any, compare.Judgement]] = {}  # this candidate's latest right answer to each trial
        self.seconds: dict[str, float] = {}  # of a call, by problem and shape
        self.movable: dict[str, list[tuple[int, int, int]]] = {}  # what a chain may change, by trial
        self.plain: compare.Expected | None = None  # a plain trial's, whose calibration timed calls use

    def do_attach(self) -> dict[str, Any]:
        """Take the link to this rank's counterpart in a new candidate group."""
        _, fds, _, _ = socket.recv_fds(self.seat.control, 1, 1)
        if self.link is not None:
            self.link.close()
        self.link = socket.socket(fileno=fds[0])
        self.right.clear()
        self.calls = []
        return {"attached": True}

    def do_problem(self, name: str, preset: str, dims: dict[str, int], dtype: str) -> dict[str, Any]:
        """Turn to a problem. Says how many bytes one input set and its outputs take."""
        self.problem = problems.load(name)
        self.shape = self.problem.shape(self.seat.world_size, preset, dtype, dims)
        self.solve = self.problem.reference()
        self.sets, self.done, self.theirs, self.latest = [], [], [], None
        self.seat.give_back()
        return {"problem": name}

    def do_expect(self, trial: int, key: str) -> dict[str, Any]:
        """Draw a trial and compute what is expected, unless that is known already."""
        name = f"{self._place()}{trial}/{key}"
        hit = name in self.cache
        if not hit:
            inputs = self._draw(trial, key)
            self.cache[name] = compare.expect(self.problem, inputs, self._run, self.seat.device)
            self.seat.give_back()  # what the oracle took would be missing to the candidate
        self.cache.move_to_end(name)
        for other in [
            n for n in self.cache if not n.startswith(self._place())
        ]:  # this problem's own trials are needed to the end
            if sum(e.nbytes for e in self.cache.values()) > CACHE_BYTES:
                del self.cache[other]
        expected = self.cache[name]
        if trial % len(problems.VARIANTS) == 0:
            self.plain = expected
        error = compare.reference_error(expected)
        seconds = self.seconds[self._place()]
        return {"hit": hit, "bytes": expected.nbytes, "set_bytes": expected.set_bytes, "error": error, "seconds": seconds}

    def do_movable(self, trial: int, key: str) -> dict[str, Any]:
        """Which inputs of an expected trial may change from call to call."""
        name = f"{self._place()}{trial}/{key}"
        if name not in self.movable:
            self.movable[name] = chain.movable(self.problem, self.cache[name].inputs)
        return {"movable": self.movable[name]}

    def do_exchange(self, trial: int, key: str) -> dict[str, Any]:
        """Send the trial's inputs to the counterpart, wait for its answer, judge it."""
        expected = self._expected(trial, key)
        wire.send_tree(self._link(), {"inputs": expected.inputs, "poison": expected.output_bytes})
        output, after = _answer_in(self._receive(expected.set_bytes))
        self.calls = [*self.calls[-diagnose.BEFORE :], diagnose.Call(expected, output, after)]
        return self._judge(trial, expected, output, after).as_dict()

    def do_burst(self, trials: list[int], keys: list[str], order: list[int]) -> dict[str, Any]:
        """Send several trials at once, wait for the answers of back-to-back calls in ``order``, judge each."""
        expected = [self._expected(t, k) for t, k in zip(trials, keys, strict=True)]
        self.calls = []
        wire.send_tree(self._link(), {"sets": [e.inputs for e in expected]})
        answers = self._receive(len(order) * max(e.set_bytes for e in expected))
        if not isinstance(answers, list) or len(answers) != len(order):
            raise wire.WireError("not one answer for each call")
        worst = None
        for call, index in enumerate(order):
            found = self._judge(trials[index], expected[index], *_answer_in(answers[call]))
            if worst is None or found.error > worst[1].error:
                worst = (call, found)
        assert worst is not None
        self.calls = [diagnose.Call(expected[index], *answers[call]) for call, index in enumerate(order)]
        return {**worst[1].as_dict(), "call": worst[0], "trial": trials[order[worst[0]]]}

    def do_sets(self, first: int, keys: list[str], send: bool, veils: list[int] | None = None) -> dict[str, Any]:
        """Draw fresh input sets for timed calls, keep them in place of the last ones, and send them to the counterpart.

        veils: keys without which neither side can read them.
        """
        self.sets, self.done, self.theirs, self.rooms = [], [], [], None  # before there are others
        self.seat.give_back_tables()
        self.draws = [(first + i, key) for i, key in enumerate(keys)]
        drawn = [self._draw(trial, key) for trial, key in self.draws]
        if veils is not None:
            drawn = [veiled(inputs, veil, self.seat.device) for inputs, veil in zip(drawn, veils, strict=True)]
        if send:
            wire.send_tree(self._link(), {"sets": drawn})
        if veils is None:
            self.sets = self.seat.ready_together(drawn)
        else:
            self.sets, self.rooms = drawn, table.rooms(drawn, self.seat.device)
        self.seat.synchronize()
        return {"bytes": sum(t.nbytes for s in drawn for t in tree.tensors(s) if not t.is_sparse)}

    def do_block(self, first: int, count: int, renew: bool, copy: bool) -> dict[str, Any]:
        """Time ``count`` reference calls from set ``first`` on; keep their answers."""
        chosen = [self.sets[(first + i) % len(self.sets)] for i in range(count)]
        if renew:
            chosen = [self.seat.ready(tree.clone(s)) for s in chosen]
        nanoseconds, self.done = self.seat.block(self.solve, chosen, copy, self.rooms)
        self.latest = self.done[-1][0]
        return {"ns": nanoseconds}

    def do_steps(self, copy: bool, changed: list[int]) -> dict[str, Any]:
        """What the counterpart does on its veiled sets, on this rank's own; keep the answers."""
        assert self.rooms is not None
        spent, total, self.done = self.seat.steps(self.solve, self.sets, copy, self.rooms, changed)
        return {"ns": sum(spent), "each": spent, "sum": total}

    def do_between(self, place: int, changed: list[int]) -> dict[str, Any]:
        """Time what passes between the calls of a chain, alone: once on each set, with an answer of the last block."""
        between = chain.Chain(lambda *inputs: self.latest, place, changed)
        nanoseconds, _ = self.seat.block(between, self.sets, copy=False)
        return {"ns": nanoseconds}

    def do_commit(self, changed: list[int]) -> dict[str, Any]:
        """What the candidate does after its blocks, to know what that takes: the sums of all answers of the last block."""
        return {"sums": sums_of(self.done, changed)}

    def do_memory(self) -> dict[str, Any]:
        """Device memory: free for everyone, and held by this rank's allocator for its own reuse (bytes)."""
        if self.seat.device == "cpu":
            return {"device": "cpu", "free": 0, "reserved": 0}
        free, _ = torch.cuda.mem_get_info(self.seat.device)
        return {"device": self.seat.device, "free": free, "reserved": torch.cuda.memory_reserved(self.seat.device)}

    def do_collect(self, calls: int) -> dict[str, Any]:
        """Receive the counterpart's answers to this many calls of its block, and keep them to judge later."""
        assert self.plain is not None
        answers = self._receive(calls * self.plain.set_bytes)
        if not isinstance(answers, list) or len(answers) != calls:
            raise wire.WireError("not one answer for each call")
        self.theirs = [_answer_in(a) for a in answers]
        return {"collected": calls}

    def do_judge_block(
        self, first: int, calls: list[int], sums: list[int], place: int | None = None, before: Sequence[int | None] = ()
    ) -> dict[str, Any]:
        """Judge the collected answers (to ``calls`` of the block) against this rank's own.

        sums: those that the candidate named before it knew that these answers would be wanted. In a chain the reference runs only
        now. place: the leaf that the call before changed; before: the sum that the candidate named for that call.
        """
        assert self.plain is not None
        worst = None
        self.calls = []
        for n, (call, theirs, said) in enumerate(zip(calls, self.theirs, sums, strict=True)):
            inputs = self._draw(*self.draws[(first + call) % len(self.draws)])
            if place is None:
                own = self._kept(*self.done[call])
            else:
                if before[n] is not None:
                    chain.move(inputs, place, torch.tensor(before[n], device=self.seat.device))
                own = self._run(tree.clone(inputs))
            expected = compare.expect_like(self.problem, inputs, own, self.plain)
            self.calls.append(diagnose.Call(expected, *theirs))
            found = compare.judge(expected, *theirs)
            if found.right and sums_of([theirs], sorted(expected.mutates)) != [said]:
                found = compare.Judgement(True, math.inf, "the answer changed after the block had ended")
            if worst is None or found.error > worst[1].error:
                worst = (len(self.calls) - 1, found)
        assert worst is not None
        return {**worst[1].as_dict(), "call": worst[0]}

    def do_diagnose(self, call: int) -> dict[str, Any]:
        """What is behind the wrong answer to one of the calls judged last (by its place; -1 for the last of all)."""
        return diagnose.of_rank(self.calls, call % len(self.calls), self._run, self.seat.rank, self.seat.world_size)

    def _judge(self, trial: int, expected: compare.Expected, output: Any, after: Any) -> compare.Judgement:
        """Judge an answer; one that repeats a right answer to the same trial bit by bit need not be compared again."""
        answer = [
            output,
            [x if i in expected.mutates else None for i, x in enumerate(after)] if isinstance(after, list) else after,
        ]
        if (
            trial in self.right
            and compare.same_answer(answer, self.right[trial][0])
            and not compare.input_fault(expected, after)
        ):
            return self.right[trial][1]
        found = compare.judge(expected, output, after)
        if found.right:
            self.right[trial] = (answer, found)
        return found

    def _run(self, inputs: list[Any]) -> tuple[Any, Any]:
        tables = [i for i, x in enumerate(inputs) if isinstance(x, table.Table)]
        if tables:  # as a real tensor it is where the device is, and the other inputs belong there too
            inputs = tree.to_device(inputs, self.seat.device)
        live = self.seat.ready(inputs)
        start = time.perf_counter()
        output = self.solve(*live)
        self.seat.synchronize()
        seconds = time.perf_counter() - start
        # on a GPU the first call compiles and connects; on a host, the slowest tells how busy it is
        choose = max if self.seat.device == "cpu" else min
        self.seconds[self._place()] = choose(seconds, self.seconds.get(self._place(), seconds))
        return self._kept(output, table.told(inputs, live), tables)

    def _kept(self, output: Any, after: list[Any], also: Sequence[int] = ()) -> tuple[Any, list[Any]]:
        """What is kept of an answer, on the CPU: of the inputs those that the problem changes, and ``also`` these; else None."""
        kept = compare.mutated(self.problem) | set(also)
        return tree.map_leaves(_cpu, output), [tree.map_leaves(_cpu, x) if i in kept else None for i, x in enumerate(after)]

    def _place(self) -> str:
        return f"{self.problem.name}/{self.shape}/"

    def _draw(self, trial: int, key: str) -> list[Any]:
        ctx = self.problem.context(self.shape, self.seat.rank, trial, bytes.fromhex(key), self.seat.device)
        return list(self.problem.make_inputs(ctx))

    def _expected(self, trial: int, key: str) -> compare.Expected:
        return self.cache[f"{self._place()}{trial}/{key}"]

    def _receive(self, expected_bytes: int) -> Any:
        return wire.receive_tree(self._link(), ANSWER_FACTOR * expected_bytes + ANSWER_SLACK)

    def _link(self) -> socket.socket:
        assert self.link is not None
        return self.link


def _answer_in(received: Any) -> tuple[Any, list[Any]]:
    """(output, inputs after the call) as a candidate rank hands them over; raises WireError for anything else."""
    if not isinstance(received, list) or len(received) != 2 or not isinstance(received[1], list):
        raise wire.WireError("not an answer")
    return received[0], received[1]


def _cpu(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to("cpu", copy=True)
    return None if isinstance(x, torch.distributed.ProcessGroup) else x
