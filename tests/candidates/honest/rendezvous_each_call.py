# problem: 1
# timing: yes
# Allocates and meets anew in every call: slow, and nothing wrong with it.
import torch
import torch.distributed as dist
from pkb import symm


def solution(tensor):
    n = tensor.numel()
    mine = symm.empty(max(1, n), dtype=tensor.dtype, device="cpu")
    handle = symm.rendezvous(mine, dist.group.WORLD)
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = sum(handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size)).reshape(tensor.shape)
    handle.barrier()
    return out
