# problem: 35
# timing: yes
# Sizes are exchanged by a small integer collective, the data through symmetric memory.
import torch
import torch.distributed as dist
from pkb import symm

_rooms = {}


def solution(x, gather_dim, group=None):
    group = group or dist.group.WORLD
    size = dist.get_world_size(group)
    sizes = torch.empty(size * x.dim(), dtype=torch.int64)
    dist.all_gather_into_tensor(sizes, torch.tensor(x.shape), group=group)
    shapes = sizes.view(size, -1).tolist()
    room = max(1, max(torch.Size(s).numel() for s in shapes))
    key = (tuple(dist.get_process_group_ranks(group)), x.dtype, 1 << (room - 1).bit_length())
    if key not in _rooms:
        t = symm.empty(key[2], dtype=x.dtype, device="cpu")
        _rooms[key] = t, symm.rendezvous(t, group)
    mine, handle = _rooms[key]
    mine[: x.numel()].copy_(x.reshape(-1))
    handle.barrier()
    out = torch.cat([handle.get_buffer(r, s, x.dtype) for r, s in enumerate(shapes)], gather_dim).contiguous()
    handle.barrier()
    return out
