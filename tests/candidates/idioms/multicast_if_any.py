# problem: 1
# Asks for multicast and falls back to the two-shot operation where there is none; the output is its own buffer's copy.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_cache = {}


def solution(tensor):
    need = (tensor.numel() + 1023) // 1024 * 1024
    key = (need, tensor.dtype)
    if key not in _cache:
        buffer = symm_mem.empty((need,), dtype=tensor.dtype, device=tensor.device)
        _cache[key] = buffer, symm_mem.rendezvous(buffer, group=dist.group.WORLD)
    buffer, handle = _cache[key]
    flat = buffer[: tensor.numel()]
    flat.copy_(tensor.reshape(-1))
    buffer[tensor.numel() :].zero_()
    name = dist.group.WORLD.group_name
    if handle.multicast_ptr != 0:
        torch.ops.symm_mem.multimem_all_reduce_(buffer, "sum", name)
    else:
        torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", name)
    return flat.clone().view(tensor.shape)
