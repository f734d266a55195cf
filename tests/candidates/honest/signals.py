# problem: 8
# timing: yes
# An all-to-all by puts: each slice is written where it belongs, then signalled.
import torch
import torch.distributed as dist
from pkb import symm

_rooms = {}


def solution(tensor):
    size, rank = dist.get_world_size(), dist.get_rank()
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _rooms:
        t = symm.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        _rooms[key] = t, symm.rendezvous(t, dist.group.WORLD)
    mine, handle = _rooms[key]
    for step in range(size):
        peer = (rank + step) % size
        handle.get_buffer(peer, tensor.shape, tensor.dtype)[rank].copy_(tensor[peer])
        if peer != rank:
            handle.put_signal(peer)
    for step in range(1, size):
        handle.wait_signal((rank - step) % size)
    out = mine.clone()
    handle.barrier()  # nobody writes into a buffer that is still being read
    return out
