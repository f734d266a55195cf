"""All-gather of shards of unequal size, joined along a chosen dimension.

A helper of Ulysses sequence parallelism (VeOmni) for sequences that do not divide evenly: every rank ends up with the
complete tensor.

Every rank of the group holds a shard; the shards agree in everything but their size along ``gather_dim``, and no rank knows
the sizes of the others beforehand. A shard may be empty.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, gather_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the shards of all ranks, joined along ``gather_dim`` in rank order, contiguous."""
    group = group if group is not None else dist.group.WORLD
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    x = x.contiguous()
    if world_size == 1:
        return x

    # Exchange the shapes.
    shape = torch.tensor(x.shape, dtype=torch.int64, device=x.device)
    shapes = shape.new_empty(world_size * x.dim())
    dist.all_gather_into_tensor(shapes, shape, group=group)

    # Each rank in turn sends its shard to all others.
    shards = [x.new_empty(size) for size in shapes.view(world_size, x.dim()).tolist()]
    shards[rank].copy_(x)
    for source, shard in enumerate(shards):
        if shard.numel():
            dist.broadcast(shard, src=dist.get_global_rank(group, source), group=group)
    return torch.cat(shards, dim=gather_dim)
