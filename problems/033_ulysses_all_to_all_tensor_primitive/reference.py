"""All-to-all that splits one tensor dimension and concatenates along another.

The exchange behind DeepSpeed-Ulysses sequence parallelism (as implemented in VeOmni): a tensor sharded along one dimension
becomes sharded along another, for example from sequence shards to head shards.

Every rank of the group holds a tensor of the same shape. It is cut along ``scatter_dim`` into one equal piece per rank;
piece d goes to rank d; the pieces received are joined along ``gather_dim`` in rank order.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return a contiguous tensor: ``scatter_dim`` shrunk by the group size, ``gather_dim`` grown by it.

    The group size must divide x.shape[scatter_dim]. The two dimensions may be equal and may be negative.
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return x.contiguous()
    if x.shape[scatter_dim] % world_size:
        raise ValueError(f"{x.shape[scatter_dim]} entries of dimension {scatter_dim} cannot be cut into {world_size} pieces")

    to_send = torch.stack(x.chunk(world_size, dim=scatter_dim))  # (W, ...), piece d for rank d
    received = torch.empty_like(to_send)
    dist.all_to_all_single(received, to_send, group=group)
    return torch.cat(received.unbind(0), dim=gather_dim)
