# problem: 13
# The workspace that torch keeps for a group, and channels of its barriers.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


def solution(A_local, B_local):
    rank, world = dist.get_rank(), dist.get_world_size()
    partial = torch.matmul(A_local, B_local)
    space = symm_mem.get_symm_mem_workspace(dist.group.WORLD.group_name, min_size=partial.numel() * partial.element_size())
    space.get_buffer(rank, partial.shape, partial.dtype).copy_(partial)
    space.barrier(channel=0)
    total = torch.zeros(partial.shape, dtype=torch.float32 if partial.dtype != torch.float64 else torch.float64, device=partial.device)
    for peer in range(world):
        total += space.get_buffer(peer, partial.shape, partial.dtype)
    space.barrier(channel=1)
    return total.to(partial.dtype)
