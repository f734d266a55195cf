# problem: 3
# The source puts its data into every peer's buffer and signals; peers wait for the signal, and tell when they have copied.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_state = {}


def solution(tensor, src=0):
    rank, world = dist.get_rank(), dist.get_world_size()
    key = (tensor.numel(), tensor.dtype)
    if key not in _state:
        buffer = symm_mem.empty(max(1, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
        _state[key] = symm_mem.rendezvous(buffer, dist.group.WORLD.group_name)
    handle = _state[key]
    if rank == src:
        for peer in range(world):
            if peer != src:
                handle.get_buffer(peer, tensor.shape, tensor.dtype).copy_(tensor)
                handle.put_signal(dst_rank=peer, channel=0)
        for peer in range(world):
            if peer != src:
                handle.wait_signal(src_rank=peer, channel=1)
        return tensor.clone()
    handle.wait_signal(src_rank=src, channel=0)
    out = handle.get_buffer(rank, tensor.shape, tensor.dtype).clone()
    handle.put_signal(dst_rank=src, channel=1)
    return out
