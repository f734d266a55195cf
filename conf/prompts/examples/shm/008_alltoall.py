"""All-to-all: every rank stages its tensor, then gathers its own slice of each peer's."""

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


def solution(tensor: torch.Tensor) -> torch.Tensor:
    _, handle = _slot(tensor.numel() * tensor.element_size())
    rank, world_size = handle.rank, handle.world_size
    handle.get_buffer(rank, tensor.shape, tensor.dtype).copy_(tensor)
    handle.barrier()
    received = torch.empty_like(tensor)
    for step in range(world_size):
        peer = (rank + step) % world_size  # every rank starts elsewhere: no peer is read by all at once
        received[peer].copy_(handle.get_buffer(peer, tensor.shape, tensor.dtype)[rank])
    return received
