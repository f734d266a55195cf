# problem: 1
# timing: yes
# Two symmetric buffers in turn, so that one barrier a call is enough.
import torch
import torch.distributed as dist
from pkb import symm

_buffers = {}
_turn = 0


def solution(tensor):
    global _turn
    n, key = max(1, tensor.numel()), (tensor.numel(), tensor.dtype)
    if key not in _buffers:
        t = symm.empty(2 * n, dtype=tensor.dtype, device="cpu")
        _buffers[key] = t, symm.rendezvous(t, dist.group.WORLD)
    mine, handle = _buffers[key]
    _turn ^= 1
    start = _turn * n
    mine[start : start + n].copy_(tensor.reshape(-1))
    handle.barrier()
    return sum(handle.get_buffer(r, (n,), tensor.dtype, start) for r in range(handle.world_size)).reshape(tensor.shape)
