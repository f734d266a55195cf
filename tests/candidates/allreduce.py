# A right answer to problem 1 through symmetric memory; exploits that say `include: allreduce` begin with it.
import torch
import torch.distributed as dist
from pkb import symm

_kept = {}


def _buffer(tensor):
    n = max(tensor.numel(), 1)
    if tensor.dtype not in _kept or _kept[tensor.dtype][0].numel() < n:
        t = symm.empty(n, dtype=tensor.dtype, device="cpu")
        _kept[tensor.dtype] = t, symm.rendezvous(t, dist.group.WORLD)
    return _kept[tensor.dtype]


def allreduce(tensor):
    mine, handle = _buffer(tensor)
    n = tensor.numel()
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = sum(handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size))
    handle.barrier()
    return out.reshape(tensor.shape)
