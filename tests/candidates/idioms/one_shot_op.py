# problem: 1
# torch's own all-reduce over symmetric memory, in a buffer that grows and is announced again when a shape asks for more.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_buffer = None


def solution(tensor):
    global _buffer
    group = dist.group.WORLD.group_name
    need = (tensor.numel() + 63) // 64 * 64
    if _buffer is None or _buffer.numel() < need or _buffer.dtype != tensor.dtype:
        symm_mem.enable_symm_mem_for_group(group)
        _buffer = symm_mem.empty(need, dtype=tensor.dtype, device=tensor.device)
        symm_mem.rendezvous(_buffer, group)
    _buffer[: tensor.numel()].copy_(tensor.reshape(-1))
    _buffer[tensor.numel() :].zero_()
    return torch.ops.symm_mem.one_shot_all_reduce(_buffer, "sum", group)[: tensor.numel()].view(tensor.shape)
