"""All-reduce in one shot: every rank stages its tensor, then one kernel reads all peers and sums in float32."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def sum_peers(buffers, out, count, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = sum over ranks of their buffers; ``buffers`` is the address of the table of the buffers' addresses."""
    table = buffers.to(tl.pointer_type(tl.uint64))
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(WORLD):  # the same order on all ranks, so all get the same bits
        staged = tl.load(table + rank).to(tl.pointer_type(out.dtype.element_ty))
        total += tl.load(staged + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


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
    handle.get_buffer(handle.rank, tensor.shape, tensor.dtype).copy_(tensor)
    handle.barrier(channel=0)
    total = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    count, block = total.numel(), 2048
    if count:
        sum_peers[(triton.cdiv(count, block),)](
            handle.buffer_ptrs_dev, total, count, WORLD=handle.world_size, BLOCK=block, num_warps=8
        )
    return total
