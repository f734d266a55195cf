"""All-to-all: every rank stages its tensor, then one kernel gathers this rank's slice of each peer's."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def gather_slices(buffers, out, count, offset, rank, world, BLOCK: tl.constexpr):
    """out[p, :count] = ``count`` elements of peer p's buffer from ``offset`` on; ``buffers`` is the address of the table of the
    buffers' addresses."""
    peer = (rank + tl.program_id(1)) % world  # every rank begins with itself: no peer is read by all at once
    table = buffers.to(tl.pointer_type(tl.uint64))
    staged = tl.load(table + peer).to(tl.pointer_type(out.dtype.element_ty))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    values = tl.load(staged + offset + at, mask=inside)
    tl.store(out + peer.to(tl.int64) * count + at, values, mask=inside)


_state = {"bytes": 0, "call": 0}


def _slot(nbytes, device):
    """This call's symmetric-memory handle: two buffers take turns, so that one barrier per call is enough.

    A buffer is written again two calls later. Before that, every rank's stream has passed the barrier of the call between, which
    a peer's stream reaches only after it has finished reading.
    """
    if nbytes > _state["bytes"]:  # sizes are equal on all ranks, so all ranks take this branch together
        torch.cuda.synchronize()  # a peer may still be reading the old buffers
        dist.barrier()
        _state["bytes"] = max(nbytes, 2 * _state["bytes"])
        _state["buffers"] = [symm_mem.empty(_state["bytes"], dtype=torch.uint8, device=device) for _ in range(2)]
        _state["handles"] = [symm_mem.rendezvous(buffer, dist.group.WORLD) for buffer in _state["buffers"]]
    _state["call"] += 1
    return _state["handles"][_state["call"] % 2]


def solution(tensor: torch.Tensor) -> torch.Tensor:
    handle = _slot(tensor.numel() * tensor.element_size(), tensor.device)
    rank, world_size = handle.rank, handle.world_size
    handle.get_buffer(rank, tensor.shape, tensor.dtype).copy_(tensor)
    handle.barrier(channel=0)
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    count, block = received.numel() // world_size, 4096
    if count:
        grid = (triton.cdiv(count, block), world_size)
        gather_slices[grid](handle.buffer_ptrs_dev, received, count, rank * count, rank, world_size, BLOCK=block, num_warps=8)
    return received
