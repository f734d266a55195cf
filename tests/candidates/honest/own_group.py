# problem: 1
# timing: yes
# A group made for the kernel alone, in the first call: its rendezvous and its barrier.
import torch
import torch.distributed as dist
from pkb import symm

_rooms = {}


def solution(tensor):
    n, key = tensor.numel(), (tensor.dtype, tensor.numel())
    if key not in _rooms:
        group = dist.new_group(list(range(dist.get_world_size())))
        mine = symm.empty(max(1, n), dtype=tensor.dtype, device="cpu")
        _rooms[key] = mine, symm.rendezvous(mine, group), group
    mine, handle, group = _rooms[key]
    mine[:n].copy_(tensor.reshape(-1))
    dist.barrier(group)
    out = sum(handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size)).reshape(tensor.shape)
    dist.barrier(group)
    return out
