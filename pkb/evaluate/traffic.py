"""In a candidate rank: an account of what torch.distributed was asked to move. A hint; the kernel's counters decide.

What the account names explains traffic that the kernel counted; what the kernel counted beyond it has no explanation.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.utils._pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pkb import symm

#: Functions of torch.distributed that send tensor data, and which argument they send.
SENDERS = {
    "all_reduce": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "broadcast": 0,
    "reduce": 0,
    "gather": 0,
    "scatter": 1,
    "send": 0,
    "isend": 0,
    "all_reduce_coalesced": 0,
}
#: Functions of torch.distributed that move no data of their own but talk on the network, and how many operations they amount to.
QUIET = {"barrier": 1, "monitored_barrier": 1, "new_group": 16}
#: Methods of the key-value store that carry data, and the first argument that is data.
STORING = {"set": 1, "append": 1, "compare_set": 1, "queue_push": 1, "multi_set": 1}


#: Is told of a call's arguments: those by position, those by keyword.
Told = Callable[[Sequence[Any], Sequence[Any]], None]


class Account:
    """Bytes and operations since the last ``take``."""

    def __init__(self) -> None:
        self.sent, self.count, self.ops, self.floats = 0, 0, set[str](), set[str]()
        self._meetings = symm.meetings()
        self._lock = threading.Lock()

    def note(self, op: str, payload: Any, count: bool = True) -> None:
        """count: add the bytes, unless they have been added where the operation was called."""
        tensors = [payload] if isinstance(payload, torch.Tensor) else [t for t in payload or [] if isinstance(t, torch.Tensor)]
        with self._lock:
            self.ops.add(op)
            self.count += 1
            self.sent += sum(t.nbytes for t in tensors) if count else 0
            if any(t.is_floating_point() or t.is_complex() for t in tensors):
                self.floats.add(op)

    def note_bytes(self, op: str, nbytes: int) -> None:
        """Data that is no tensor."""
        with self._lock:
            self.ops.add(op)
            self.count += 1
            self.sent += nbytes

    def note_quiet(self, weight: int) -> None:
        """Something that moves no data, but makes itself heard on the network as ``weight`` operations do."""
        with self._lock:
            self.count += weight

    def take(self) -> dict[str, Any]:
        """sent_bytes; op_count; ops and float_ops, by name; meetings: rendezvous of ``pkb.symm``; peers: see ``peers``."""
        with self._lock:
            found = {"sent_bytes": self.sent, "op_count": self.count, "ops": sorted(self.ops), "float_ops": sorted(self.floats)}
            found |= {"meetings": symm.meetings() - self._meetings, "peers": peers()}
            self.sent, self.count, self.ops, self.floats = 0, 0, set(), set()
            self._meetings = symm.meetings()
        return found


def peers() -> int:
    """To how many ranks the groups other than the world connect this one, each group for itself."""
    groups = [g for g in dist.distributed_c10d._world.pg_map if g is not dist.group.WORLD]
    return sum(g.size() - 1 for g in groups)


class Observer(TorchDispatchMode):
    """Notes the operations that reach process groups through the dispatcher: methods of groups, functional collectives, C++."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch's compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func.namespace, func.__name__.split(".")[0].rstrip("_")
        if namespace in ("c10d", "_c10d_functional", "c10d_functional"):
            if name in _MOVES_NOTHING:
                self._account.note_quiet(1)
            else:
                self._account.note(f"{namespace}.{name}", _first_tensors(args), count=False)
        return func(*args, **(kwargs or {}))


_MOVES_NOTHING = ("barrier", "monitored_barrier", "wait_tensor")


def _first_tensors(args: Any) -> list[torch.Tensor]:
    for arg in args:
        found = [t for t in torch.utils._pytree.tree_leaves(arg) if isinstance(t, torch.Tensor)]
        if found:
            return found
    return []


def install(account: Account) -> None:
    """Wrap the functions of torch.distributed that send, and the store's, in this process."""

    def sender(name: str, position: int) -> Told:
        return lambda args, named: account.note(name, _payload(args, named, position))

    def quiet(weight: int) -> Told:
        return lambda args, named: account.note_quiet(weight)

    def storing(name: str, position: int) -> Told:
        return lambda args, named: account.note_bytes(f"store.{name}", _length([*args, *named][1 + position :]))

    for name, position in SENDERS.items():
        if hasattr(dist, name):
            _replace(name, sender(name, position))
    for name, weight in QUIET.items():
        _replace(name, quiet(weight))
    for name, position in STORING.items():
        setattr(dist.Store, name, _telling(getattr(dist.Store, name), storing(name, position)))


def _replace(name: str, told: Told) -> None:
    wrapped = _telling(getattr(dist, name), told)
    setattr(dist, name, wrapped)
    setattr(c10d, name, wrapped)  # P2POp asks for this very object


def _telling(original: Callable[..., Any], told: Told) -> Callable[..., Any]:
    """``original``, but ``told`` has its arguments first."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        told(args, list(kwargs.values()))
        return original(*args, **kwargs)

    return call


def _payload(args: Sequence[Any], named: Sequence[Any], position: int) -> Any:
    """The argument that is sent; where it was given by keyword, the first that can be."""
    if len(args) > position:
        return args[position]
    return next((v for v in [*args, *named] if isinstance(v, torch.Tensor | list)), None)


def _length(x: Any) -> int:
    """Bytes of everything in x that is data to a store."""
    if isinstance(x, bytes | str):
        return len(x)
    return sum(map(_length, x)) if isinstance(x, list | tuple) else 0
