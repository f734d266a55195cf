"""A candidate rank: runs untrusted code on inputs that arrive as data, and hands its outputs over as bytes.

Nothing in this process is trusted: neither what it says nor what it measures decides anything alone. It holds no expected outputs,
no seeds, no keys.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import inspect
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pkb import symm, table, tree
from pkb.evaluate import extension, handed, profiling, traffic, wire
from pkb.evaluate.chain import Chain
from pkb.evaluate.seat import Seat, meet, sums_of

INPUT_LIMIT = 1 << 38


def serve(control: socket.socket, rank: int, request: dict[str, Any]) -> None:
    """Meet the group, then obey the parent: load, call, burst, warm, block."""
    seat = meet(control, rank, request)
    link = socket.socket(fileno=_receive_fd(control))
    contestant = Contestant(seat, link, request)
    stacks = open(handed.STACKS, "w")  # noqa: SIM115 - in the rank's own folder, open while the process lives
    faulthandler.register(handed.STACK_SIGNAL, stacks)
    faulthandler.enable(stacks, all_threads=False)
    while True:
        command = wire.receive_message(control)
        try:
            reply = getattr(contestant, "do_" + command.pop("do"))(**command)
        except wire.WireError:
            raise
        except BaseException as error:
            reply = _failure(error)
        seat.control.setblocking(True)
        wire.send_message(control, **reply)


class Contestant:
    """The candidate's module and the input sets that it was given."""

    def __init__(self, seat: Seat, link: socket.socket, request: dict[str, Any]) -> None:
        self.seat, self.link, self.scratch = seat, link, request["sandbox"]["scratch"]
        self.solve: Callable[..., Any] = lambda *inputs: None
        self.sets: list[list[Any]] = []
        self.done: list[tuple[Any, Any]] = []  # (output, inputs afterwards) of each call of the last block
        self.rooms: dict[int, torch.Tensor] | None = None  # memory for tables, where sets are veiled
        self.account = traffic.Account()
        traffic.install(self.account)

    def do_load(self, source: str, libraries: dict[str, str], device: str) -> dict[str, Any]:
        """Import the candidate; ``libraries`` maps identities of extensions to shared libraries."""
        extension.install(libraries, self.scratch, device)
        path = os.path.join(os.getcwd(), "candidate.py")  # the rank's own folder
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        spec = importlib.util.spec_from_file_location("candidate", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["candidate"] = module
        with torch.no_grad():
            spec.loader.exec_module(module)
        self.solve = module.solution
        kinds = inspect.Parameter
        return {
            "parameters": [
                ("*" if p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) else "") + p.name
                for p in inspect.signature(self.solve).parameters.values()
                if p.kind is not kinds.KEYWORD_ONLY
            ]
        }

    def do_call(self) -> dict[str, Any]:
        """One call in isolation: receive a set, run, return outputs and inputs as they are afterwards."""
        received = self._receive()
        inputs = self.seat.ready(received["inputs"])
        _poison_allocator(received["poison"], self.seat.device)
        start = time.perf_counter()
        output = self.solve(*inputs)
        self.seat.synchronize()
        seconds = time.perf_counter() - start
        reuse = sorted({t.untyped_storage().data_ptr() for t in _tensors(output)})
        wire.send_tree(self.link, [_plain(output), _plain(table.told(received["inputs"], inputs))])
        return {"seconds": seconds, "storages": reuse}

    def do_burst(
        self, order: list[int], late_ms: float, delay_us: float, changed: list[int], whole: int, observe: bool = False
    ) -> dict[str, Any]:
        """Back-to-back calls without host synchronisation; outputs consumed in stream order, inputs overwritten at once.

        order: index of the received set for each call. late_ms: this rank's delay before each call (random up to it).
        delay_us: longest random delay at the barriers of ``pkb.symm``. changed: inputs that belong to every answer because the
        problem changes them. whole: the call whose answer holds all inputs. observe: also see what reaches torch.distributed's
        process groups below its functions.
        """
        symm.set_delay(delay_us)
        self.sets = self._receive()["sets"]
        rooms = table.rooms(self.sets, self.seat.device)
        dice = random.Random()
        self.account.take()
        answers = []
        for call, index in enumerate(order):
            given = self.sets[index]
            inputs = self.seat.ready(tree.clone(given), rooms)
            if late_ms:
                time.sleep(dice.random() * late_ms / 1e3)
            with traffic.Observer(self.account) if observe else contextlib.nullcontext():
                output = self.solve(*inputs)
            kept = table.told(given, inputs) if call == whole else [x if i in changed else None for i, x in enumerate(inputs)]
            answers.append([_plain(output), _plain(kept)])
            _overwrite(given, inputs, rooms)
        self.seat.synchronize()
        symm.set_delay(0.0)
        wire.send_tree(self.link, answers)
        self._forget()
        return {"calls": len(order), **self.account.take()}

    def do_account(self) -> dict[str, Any]:
        """What torch.distributed was asked to move since this was last asked."""
        return self.account.take()

    def do_sets(self, veiled: bool = False) -> dict[str, Any]:
        """Receive the input sets of the next blocks, in place of the last ones; veiled: they can be read only when their keys come."""
        self.sets = self._receive()["sets"]
        if veiled:
            self.rooms = table.rooms(self.sets, self.seat.device)
        else:
            self.sets = self.seat.ready_together(self.sets)
        self.seat.synchronize()
        return {"sets": len(self.sets)}

    def do_block(
        self, first: int, count: int, renew: bool, copy: bool, place: int | None = None, changed: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run ``count`` calls from set ``first`` on (around the end, with copies of inputs where ``renew``, of outputs where ``copy``).

        place: the leaf of a call's inputs that the call before it changes (``pkb.evaluate.chain``). Every call's answer is kept
        until ``do_answers`` asks for some.
        """
        chosen = [self.sets[(first + i) % len(self.sets)] for i in range(count)]
        if renew:
            chosen = [self.seat.ready(tree.clone(s)) for s in chosen]
        solve = self.solve if place is None else Chain(self.solve, place, changed)
        nanoseconds, self.done = self.seat.block(solve, chosen, copy, self.rooms)
        return {"ns": nanoseconds}

    def do_steps(self, copy: bool, changed: list[int]) -> dict[str, Any]:
        """One call on each of the veiled sets, as soon as its key is there."""
        assert self.rooms is not None
        spent, total, self.done = self.seat.steps(self.solve, self.sets, copy, self.rooms, changed)
        return {"ns": sum(spent), "each": spent, "sum": total}

    def do_answers(self, calls: list[int], changed: list[int]) -> dict[str, Any]:
        """Hand over these calls' answers, and say whether outputs of the block shared memory.

        changed: which inputs belong to an answer because the problem changes them.
        """
        answers = []
        for call in calls:
            output, inputs = self.done[call]
            answers.append([_plain(output), _plain([x if i in changed else None for i, x in enumerate(inputs)])])
        if calls:
            wire.send_tree(self.link, answers)
        shared = _overlap([_places(output) for output, _ in self.done])
        self.done = []
        return {"handed": len(calls), "shared": shared}

    def do_commit(self, changed: list[int]) -> dict[str, Any]:
        """The sums of all answers of the last block, before anybody says which of them are judged."""
        return {"sums": sums_of(self.done, changed)}

    def _receive(self) -> Any:
        """Input sets, in place of those that came before."""
        self._forget()
        self.seat.give_back_tables()
        return wire.receive_tree(self.link, INPUT_LIMIT, self.seat.device)

    def _forget(self) -> None:
        """Let go of input sets and of the answers to them."""
        self.sets, self.done, self.rooms = [], [], None

    def do_profile(self, warmup: int) -> dict[str, Any]:
        """Call once on each input set, after the first ``warmup`` under torch.profiler; leave the trace in this rank's folder."""
        for inputs in self.sets[:warmup]:
            self.solve(*inputs)
        self.seat.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.seat.device != "cpu":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with _named_waits(), torch.profiler.profile(activities=activities) as profiler:
            torch.distributed.barrier()  # profilers start in their own time
            for inputs in self.sets[warmup:]:
                with torch.profiler.record_function(profiling.CALL):
                    self.solve(*inputs)
            self.seat.synchronize()
        profiler.export_chrome_trace(profiling.TRACE)
        return {"calls": len(self.sets) - warmup}


@contextlib.contextmanager
def _named_waits() -> Iterator[None]:
    """Within the context the waiting functions of ``pkb.symm`` appear in profiles under their names."""
    names = ("barrier", "put_signal", "wait_signal")
    originals = {name: getattr(symm.SymmetricMemory, name) for name in names}

    def named(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(profiling.SYMM + name):
                return original(*args, **kwargs)

        return call

    for name, original in originals.items():
        setattr(symm.SymmetricMemory, name, named(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(symm.SymmetricMemory, name, original)


def _plain(x: Any) -> Any:
    """A deep copy in stream order that can cross the border; groups become None, oddities their type's name."""

    def leaf(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            if type(v) not in (torch.Tensor, torch.nn.Parameter):
                return {"not a plain tensor": type(v).__name__}
            return v.detach().clone() if v.is_sparse else v.detach().clone(memory_format=torch.preserve_format)
        if isinstance(v, bool | int | float | str | None | torch.Size | torch.dtype):
            return v
        if isinstance(v, torch.distributed.ProcessGroup):
            return None
        return {"not plain data": type(v).__name__}

    return tree.map_leaves(leaf, x)


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in tree.tensors(x) if type(t) is torch.Tensor and not t.is_sparse]


def _places(output: Any) -> list[tuple[int, int]]:
    """Addresses (first, end) of the memory behind an output, each storage once."""
    storages = {s.data_ptr(): s.nbytes() for t in _tensors(output) if (s := t.untyped_storage()).nbytes()}
    return [(start, start + size) for start, size in storages.items()]


def _overlap(places: list[list[tuple[int, int]]]) -> bool:
    """Whether any two outputs share memory."""
    spans = sorted({(*span, call) for call, of_call in enumerate(places) for span in of_call})
    end, owner = 0, -1
    for start, stop, call in spans:
        if start < end and call != owner:
            return True
        if stop > end:
            end, owner = stop, call
    return False


def _overwrite(given: list[Any], inputs: list[Any], rooms: dict[int, torch.Tensor]) -> None:
    """What a caller may do right after return: reuse the inputs' memory. The rows of tables in ``rooms`` become others."""
    with torch.no_grad():
        for i, was in enumerate(given):
            if isinstance(was, table.Table):
                was.erase(rooms[i])
        for t in tree.tensors([x for i, x in enumerate(inputs) if i not in rooms]):
            target = t.values() if t.is_sparse else t
            if (target.is_floating_point() and target.element_size() > 1) or target.is_complex():
                target.fill_(float("nan"))
            else:
                target.zero_()


def _poison_allocator(sizes: list[int], device: str) -> None:
    """Leave NaN in the memory that the next allocations of these sizes (bytes) will get.

    Some blocks are a little larger: an aligned allocation first asks for its size and room to align it.
    """
    blocks = [torch.full(((n + 3) // 4 + more,), float("nan"), device=device) for n in sizes for more in (0, 0, 32, 32)]
    del blocks


def _failure(error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(error))
    kind = "compile" if isinstance(error, extension.BuildError) else "raise"
    host = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    if host or isinstance(error, torch.OutOfMemoryError | MemoryError):
        kind = "memory"
    return {"failed": kind, "error": f"{type(error).__name__}: {error}"[:2000], "traceback": text[-8000:]}


def _receive_fd(control: socket.socket) -> int:
    _, fds, _, _ = socket.recv_fds(control, 1, 1)
    return fds[0]
