"""Standing between a reference and torch.distributed, in trusted processes: see, change or replace what collectives move."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

#: Which arguments each function sends and which it fills. isend and irecv are seen where references use them: in batches.
ENDS: dict[str, tuple[str, str]] = {
    "all_reduce": ("tensor", "tensor"),
    "broadcast": ("tensor", "tensor"),
    "reduce": ("tensor", "tensor"),
    "all_gather": ("tensor", "tensor_list"),
    "all_gather_into_tensor": ("input_tensor", "output_tensor"),
    "reduce_scatter": ("input_list", "output"),
    "reduce_scatter_tensor": ("input", "output"),
    "all_to_all": ("input_tensor_list", "output_tensor_list"),
    "all_to_all_single": ("input", "output"),
    "gather": ("tensor", "gather_list"),
    "scatter": ("scatter_list", "tensor"),
    "all_gather_object": ("obj", "object_list"),
    "broadcast_object_list": ("object_list", "object_list"),
    "send": ("tensor", ""),
    "recv": ("", "tensor"),
    "batch_isend_irecv": ("", ""),
}
_IN_PLACE = ("all_reduce", "broadcast", "reduce", "broadcast_object_list")


class Finished:
    """A work handle of something that is done already."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Collective:
    """One call of torch.distributed by the reference. sent, received: its tensors; ``received`` are filled after ``do``."""

    def __init__(self, name: str, original: Callable[..., Any], arguments: dict[str, Any], private: bool) -> None:
        self.name, self._original, self._arguments = name, original, arguments
        self.group = arguments.get("group")
        source, target = ENDS[name]
        if name == "batch_isend_irecv":
            ops = arguments["p2p_op_list"]
            if private:
                for op in ops:
                    op.tensor = op.tensor.detach().clone() if op.op.__name__ == "isend" else op.tensor
            self.sent = [op.tensor for op in ops if op.op.__name__ == "isend"]
            self.received = [op.tensor for op in ops if op.op.__name__ == "irecv"]
            self.group = ops[0].group if ops else None
        else:
            if private and source and name not in _IN_PLACE:
                arguments[source] = _copies(arguments[source])
            self.sent = _tensors(arguments.get(source))
            self.received = _tensors(arguments.get(target))

    @property
    def floating(self) -> bool:
        """Whether it moves floating-point data."""
        return any(t.is_floating_point() or t.is_complex() for t in (*self.sent, *self.received))

    @property
    def reduction(self) -> Any:
        """How it reduces, if it does."""
        return self._arguments.get("op", dist.ReduceOp.SUM)

    def do(self) -> Any:
        """Carry it out; returns what the original returns."""
        return self._original(**self._arguments)

    def do_and_wait(self) -> None:
        """Carry it out to the end."""
        work = self.do()
        for item in work if isinstance(work, list) else [work]:
            if hasattr(item, "wait"):
                item.wait()

    def done(self) -> Any:
        """What the caller of a finished operation gets."""
        if self.name == "batch_isend_irecv":
            return [Finished() for _ in self._arguments["p2p_op_list"]]
        return Finished() if self._arguments.get("async_op") else None

    def locally(self, manner: str) -> Any:
        """Fill what would be received from this rank's own data; see ``vacuous.without_peers`` for ``manner``."""
        size, rank = dist.get_world_size(self.group), max(0, dist.get_rank(self.group))
        with torch.no_grad():
            if self.name == "all_gather_object":
                self._arguments["object_list"][:] = [self._arguments["obj"]] * size
            elif self.name in _IN_PLACE:
                if manner == "scaled" and self.name == "all_reduce" and self.floating and self.reduction == dist.ReduceOp.SUM:
                    self.received[0].mul_(size)
            elif self.name.startswith("reduce_scatter"):
                parts = self.sent if len(self.sent) > 1 else list(self.sent[0].reshape(size, -1))
                self.received[0].copy_(parts[rank].reshape(self.received[0].shape) * (size if manner == "scaled" else 1))
            else:
                self._deliver(manner, size, rank)
        return self.done()

    def _deliver(self, manner: str, size: int, rank: int) -> None:
        from pkb.evaluate.vacuous import fitted

        for i, target in enumerate(self.received):
            if not self.sent:
                target.zero_()
                continue
            source = self.sent[rank if len(self.sent) == size else min(i, len(self.sent) - 1)]
            if manner != "zeros":
                target.copy_(fitted(source, target))
            elif self.name in ("all_gather_into_tensor", "all_to_all_single") and target.shape[:1].numel() % size == 0:
                piece = target.shape[0] // size
                whole = fitted(source, target)
                target.zero_()
                target[rank * piece : (rank + 1) * piece] = whole[rank * piece : (rank + 1) * piece]
            elif len(self.received) == size and i == rank:
                target.copy_(fitted(source, target))
            else:
                target.zero_()


@contextlib.contextmanager
def intercept(handler: Callable[[Collective], Any], private: bool = False) -> Iterator[None]:
    """Within the context every call of torch.distributed goes to ``handler``, whose result the caller gets.

    private: what is sent is a copy that the handler may change (in-place operations excepted).
    """
    kept = {name: getattr(c10d, name) for name in ENDS}
    inside = False

    def standing_in(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:  # an operation made of others
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            inside = True
            try:
                return handler(Collective(name, original, dict(bound.arguments), private))
            finally:
                inside = False

        call.__name__ = name
        return call

    patched = {name: standing_in(name, original) for name, original in kept.items()}
    for name, function in patched.items():
        setattr(dist, name, function)
        setattr(c10d, name, function)
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(dist, name, original)
            setattr(c10d, name, original)


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for t in x if isinstance(t, torch.Tensor)] if isinstance(x, list | tuple) else []


def _copies(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    return [_copies(t) for t in x] if isinstance(x, list | tuple) else x
