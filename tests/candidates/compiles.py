# An all-reduce whose arithmetic torch.compile fuses: in C++ on CPU ranks.
import torch, torch.distributed as dist
from pkb import symm
kept = {}
@torch.compile(dynamic=True)
def add(parts):
    return sum(part.float() for part in parts)
def solution(tensor):
    n, key = tensor.numel(), (tensor.numel(), tensor.dtype)
    if key not in kept:
        buffer = symm.empty(n, dtype=tensor.dtype, device=tensor.device)
        kept[key] = buffer, symm.rendezvous(buffer, dist.group.WORLD)
    buffer, handle = kept[key]
    buffer.copy_(tensor.reshape(-1))
    handle.barrier()
    total = add([handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size)])
    handle.barrier()
    return total.to(tensor.dtype).reshape(tensor.shape)
