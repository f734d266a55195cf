"""What trusted and candidate ranks have in common: meeting the group, devices, process groups, running a block."""

from __future__ import annotations

import datetime
import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from pkb import table, tree
from pkb.evaluate import wire
from pkb.evaluate.veil import lifted

#: Limits inside torch.distributed are far beyond any build or stage: only the stage's own deadline ends a group.
FOREVER = datetime.timedelta(hours=12)


@dataclass
class Seat:
    """One rank's place in its group."""

    rank: int
    world_size: int
    device: str  # "cpu" or "cuda:i"
    control: socket.socket
    groups: dict[tuple[int, ...], Any] = field(default_factory=dict)
    holds_tables: bool = False  # since memory was last given back, there have been tables that fill much of a device
    _scrub: torch.Tensor | None = None

    def group_of(self, ranks: tuple[int, ...]) -> Any:
        """The process group over these ranks; made once, by its members only."""
        if ranks not in self.groups:
            self.groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return self.groups[ranks]

    def ready(self, inputs: Sequence[Any], within: dict[int, torch.Tensor] | None = None) -> list[Any]:
        """Inputs as ``solution`` takes them: groups resolved, and real tensors for tables (in memory of their own or ``within``)."""
        self.holds_tables |= any(isinstance(x, table.Table) and x.nbytes >= table.LARGE for x in inputs)
        return list(tree.resolve_groups(table.real(inputs, self.device, within), self.group_of))

    def ready_together(self, sets: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Several input sets as ``solution`` takes them; one tensor is the table of all of them."""
        rooms = table.rooms(sets, self.device)
        return [self.ready(inputs, rooms) for inputs in sets]

    def synchronize(self) -> None:
        """Wait for everything this process has launched on its device."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def give_back(self) -> None:
        """Let other processes have what this one's allocator keeps for its own reuse."""
        self.holds_tables = False
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def give_back_tables(self) -> None:
        """Once a large table is gone, and before anything small moves into its memory: all of that would then be kept."""
        if self.holds_tables:
            self.give_back()

    def flush(self) -> None:
        """Push everything out of the device's L2, so that a block's inputs are cold: each of its sets is used once."""
        if self.device == "cpu":
            return
        if self._scrub is None:
            size = 3 * torch.cuda.get_device_properties(self.device).L2_cache_size
            self._scrub = torch.empty(size, dtype=torch.uint8, device=self.device)
        self._scrub.fill_(1)

    def lift(self, given: Sequence[Any], key: int, rooms: dict[int, torch.Tensor]) -> list[Any]:
        """An input set that came veiled, as ``solution`` takes it; rooms: memory for its tables."""
        return self.ready(lifted(given, key, self.device), rooms)

    def block(
        self, solve: Callable[..., Any], sets: Sequence[Sequence[Any]], copy: bool, rooms: dict[int, torch.Tensor] | None = None
    ) -> tuple[int, list[tuple[Any, Sequence[Any]]]]:
        """Call ``solve`` once on each input set, back to back, from the parent's go on.

        copy: outputs are copied in stream order, because they share memory from call to call. rooms: sets are veiled, their keys
        come with the go, and these are their tables'. Returns (nanoseconds from go, and from when all sets are lifted, until the
        device has nothing left to do; every call's output and inputs).
        """
        self.flush()
        self.synchronize()
        wire.send_message(self.control, armed=True)
        go = wire.receive_message(self.control)
        if rooms is not None:
            sets = [self.lift(given, key, rooms) for given, key in zip(sets, go["keys"], strict=True)]
            self.synchronize()
        outputs = []
        start = time.perf_counter_ns()
        for inputs in sets:
            output = solve(*inputs)
            outputs.append(tree.clone(output) if copy else output)
        self.synchronize()
        return time.perf_counter_ns() - start, list(zip(outputs, sets, strict=True))

    def steps(
        self,
        solve: Callable[..., Any],
        sets: Sequence[Sequence[Any]],
        copy: bool,
        rooms: dict[int, torch.Tensor],
        changed: Sequence[int],
    ) -> tuple[list[int], int, list[tuple[Any, Sequence[Any]]]]:
        """Call ``solve`` on each veiled input set as soon as its key comes, for which the parent wants the sum of the answer before.

        Returns (nanoseconds within each call, the last answer's sum, each call's output and inputs).
        """
        spent, total = list[int](), 0
        done: list[tuple[Any, Sequence[Any]]] = []
        for given in sets:
            wire.send_message(self.control, armed=True, sum=total)
            inputs = self.lift(given, wire.receive_message(self.control)["key"], rooms)
            self.synchronize()
            start = time.perf_counter_ns()
            output = solve(*inputs)
            self.synchronize()
            spent.append(time.perf_counter_ns() - start)
            total = int(sum_of(output, inputs, changed))
            done.append((tree.clone(output) if copy else output, inputs))
        return spent, total, done


def sums_of(answers: Sequence[tuple[Any, Sequence[Any]]], changed: Sequence[int]) -> list[int]:
    """For each answer a sum over the bits of its tensors: whoever names it cannot make up the answer later.

    answers: output and inputs after the call; changed: the inputs, by position, that belong to the answer.
    """
    return [int(sum_of(output, inputs, changed)) for output, inputs in answers]


def sum_of(output: Any, inputs: Sequence[Any], changed: Sequence[int]) -> torch.Tensor:
    """The sum over the bits of one answer, modulo 2**64; 0-d, int64, on the answer's device."""
    parts = tree.tensors([output, [inputs[i] for i in changed]])
    sums = [bit_sum(t) for t in parts if type(t) in (torch.Tensor, torch.nn.Parameter)]
    return functools.reduce(torch.add, sums) if sums else torch.zeros((), dtype=torch.int64)


def bit_sum(t: torch.Tensor) -> torch.Tensor:
    """A sum over a tensor's bits, modulo 2**64; 0-d, int64, on its device.

    That of all words times a weight, and of each word of the first half times its counterpart in the second: in a plain sum, changes
    of an answer that are small enough for its tolerance could bring about any value.
    """
    t = t.detach()
    if t.is_sparse:
        t = t.coalesce()
        return bit_sum(t.indices()) + bit_sum(t.values())
    flat = t.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    per_word = 8 // flat.element_size()
    if flat.storage_offset() % per_word:
        flat = flat.clone()  # 64 bits at a time is several times faster, and must come out alike wherever a tensor lies
    whole = flat.numel() - flat.numel() % per_word
    words = flat[:whole].view(torch.int64)
    half = words.numel() // 2
    total = words.sum() * _WEIGHT + (words[:half] * words[half : 2 * half]).sum()
    if whole == flat.numel():
        return total
    return total + flat[whole:].view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)


_WEIGHT = 0x5851F42D4C957F2D  # odd, and no counterpart's negative: every word counts
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def meet(control: socket.socket, rank: int, request: dict[str, Any]) -> Seat:
    """Join the process group: rank 0 opens the store and tells the parent its port, the parent tells everyone.

    request: world_size, devices (list of "cpu" or CUDA indices by rank), backend.
    """
    world_size = request["world_size"]
    device = request["devices"][rank]
    if device != "cpu":
        torch.cuda.set_device(int(device.split(":")[1]))
    torch.set_num_threads(request.get("threads", 1))
    store = None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, True, timeout=FOREVER, wait_for_workers=False)
        wire.send_message(control, port=store.port)
    port = wire.receive_message(control)["port"]
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
    )
    if store is None:
        store = dist.TCPStore("127.0.0.1", port, world_size, False, timeout=FOREVER)
    # No device_id: it would make sub-groups split NCCL's communicator, in which non-members would have to take part.
    dist.init_process_group(request["backend"], store=store, rank=rank, world_size=world_size, timeout=FOREVER)
    if device != "cpu" and request["backend"] == "gloo":
        from pkb.evaluate import staging

        staging.install()
    seat = Seat(rank, world_size, device, control, {tuple(range(world_size)): dist.group.WORLD})
    dist.barrier()
    symmetric = device != "cpu" and request["role"] == "candidate" and _warm_symmetric_memory(device)
    wire.send_message(control, met=True, symmetric=symmetric)
    return seat


def _warm_symmetric_memory(device: str) -> str:
    """Pay for the CUDA context and the first rendezvous before a candidate comes; returns what went wrong, or ''."""
    import torch.distributed._symmetric_memory as symmetric_memory

    try:
        buffer = symmetric_memory.empty(256, dtype=torch.float32, device=torch.device(device))
        handle = symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)  # type: ignore[union-attr]
        handle.barrier()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
