"""Broadcast: rank src stages its tensor in symmetric memory, the others read it."""

import torch
import torch.distributed as dist

from pkb import symm

_state = {"bytes": 0, "call": 0}


def _slot(nbytes):
    """This call's (tensor, handle): two buffers take turns, so that one barrier per call is enough.

    A buffer is written again two calls later. Before that, every rank has passed the barrier of the call between, which a
    peer reaches only after it has finished reading.
    """
    if nbytes > _state["bytes"]:  # sizes are equal on all ranks, so all ranks take this branch together
        _state["bytes"] = max(nbytes, 2 * _state["bytes"])
        buffers = [symm.empty(_state["bytes"], dtype=torch.uint8) for _ in range(2)]
        _state["slots"] = [(b, symm.rendezvous(b, dist.group.WORLD)) for b in buffers]
    _state["call"] += 1
    return _state["slots"][_state["call"] % 2]


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    _, handle = _slot(tensor.numel() * tensor.element_size())
    staged = handle.get_buffer(src, tensor.shape, tensor.dtype)
    if handle.rank == src:
        staged.copy_(tensor)
    handle.barrier()
    return staged.clone()
