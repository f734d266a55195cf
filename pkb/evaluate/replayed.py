"""What a reference would have returned had one thing about its collectives been wrong, in the trusted ranks.

All ranks run the reference once as it is and note what every collective delivered. With a mistake made on that, each rank then runs it
again alone: nothing that goes wrong there can leave another rank waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pkb.evaluate.collectives import Collective, intercept

_SUMMING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
_ORDERED = ("all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "gather")
Delivered = list[list[torch.Tensor]]
#: From a collective and what it delivered to what a candidate with a mistake takes it for.
Mistake = Callable[[Collective, list[torch.Tensor]], list[torch.Tensor]]


def delivered(run: Callable[[], Any]) -> Delivered:
    """What each collective of a run brought this rank, in order; every rank must do this at the same time."""
    found: Delivered = []

    def note(op: Collective) -> Any:
        op.do_and_wait()
        found.append([t.detach().clone() for t in op.received])
        return op.done()

    with intercept(note):
        run()
    return found


def mistaken(run: Callable[[], Any], brought: Delivered, world_size: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """(what the mistake is called, what ``run`` returns with it) for each mistake that the collectives leave room for."""
    for about, mistake in _mistakes(world_size):
        changed = False
        left = iter(brought)

        def deliver(op: Collective, left: Iterator[list[torch.Tensor]] = left, mistake: Mistake = mistake) -> Any:
            nonlocal changed
            if op.name.endswith(("object", "object_list")):
                raise LookupError("objects are not noted")
            values = next(left)
            others = mistake(op, values)
            changed = changed or others is not values
            with torch.no_grad():
                for target, value in zip(op.received, others, strict=True):
                    target.copy_(value)
            return op.done()

        try:
            with intercept(deliver):
                result = run()
        except Exception:  # sizes that were delivered wrongly, say: this mistake would have shown otherwise
            continue
        if changed:
            yield about, result


def _mistakes(world_size: int) -> Iterator[tuple[dict[str, Any], Mistake]]:
    yield {"kind": "factor", "inside": True, "factor": f"1/{world_size}", "world_size": world_size}, _averaged
    yield {"kind": "factor", "inside": True, "factor": f"{world_size}", "world_size": world_size}, _summed
    yield {"kind": "order", "how": "in reverse"}, _from(lambda r, size: size - 1 - r)
    if world_size > 2:
        yield {"kind": "order", "how": "one rank too far"}, _from(lambda r, size: (r + 1) % size)
        yield {"kind": "order", "how": "one rank too early"}, _from(lambda r, size: (r - 1) % size)


def _from(source: Callable[[int, int], int]) -> Mistake:
    """Takes for a rank's part the one of ``source(rank, world size)``."""
    return lambda op, values: _reordered(op, values, source)


def _averaged(op: Collective, values: list[torch.Tensor]) -> list[torch.Tensor]:
    return _scaled(op, values, dist.ReduceOp.SUM, 1 / dist.get_world_size(op.group))


def _summed(op: Collective, values: list[torch.Tensor]) -> list[torch.Tensor]:
    return _scaled(op, values, dist.ReduceOp.AVG, dist.get_world_size(op.group))


def _scaled(op: Collective, values: list[torch.Tensor], kind: Any, factor: float) -> list[torch.Tensor]:
    return [v * factor for v in values] if op.name in _SUMMING and op.floating and op.reduction == kind else values


def _reordered(op: Collective, values: list[torch.Tensor], source: Callable[[int, int], int]) -> list[torch.Tensor]:
    """The ranks' parts in another order, where all are of one size."""
    size = dist.get_world_size(op.group)
    if op.name not in _ORDERED or not values:
        return values
    parts: Sequence[torch.Tensor] = values
    if len(values) == 1:
        if not values[0].dim() or values[0].shape[0] % size:
            return values
        parts = values[0].chunk(size)
    if len(parts) != size or len({p.shape for p in parts}) > 1:
        return values
    moved = [parts[source(r, size)] for r in range(size)]
    return [torch.cat(moved)] if len(values) == 1 else moved
