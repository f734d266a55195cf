# problem: 13
# timing: yes
# More accurate than the reference: everything in float64, rounded once.
import torch
import torch.distributed as dist
from pkb import symm

_rooms = {}


def solution(A_local, B_local):
    part = A_local.double() @ B_local.double()
    if part.shape not in _rooms:
        t = symm.empty(part.shape, dtype=torch.float64, device="cpu")
        _rooms[part.shape] = t, symm.rendezvous(t, dist.group.WORLD)
    mine, handle = _rooms[part.shape]
    mine.copy_(part)
    handle.barrier()
    out = sum(handle.get_buffer(r, part.shape, torch.float64) for r in range(handle.world_size)).to(A_local.dtype)
    handle.barrier()
    return out
