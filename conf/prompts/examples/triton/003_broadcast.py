"""Broadcast: rank src stages its tensor in symmetric memory, the others read it with one kernel."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def read_peer(staged, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(staged + at, mask=at < count), mask=at < count)


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


def solution(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    handle = _slot(tensor.numel() * tensor.element_size(), tensor.device)
    staged = handle.get_buffer(src, tensor.shape, tensor.dtype)  # on this rank an address in src's memory
    if handle.rank == src:
        staged.copy_(tensor)
    handle.barrier(channel=0)
    if handle.rank == src:
        return tensor.clone()
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    block = 4096
    if out.numel():
        read_peer[(triton.cdiv(out.numel(), block),)](staged, out, out.numel(), BLOCK=block, num_warps=8)
    return out
