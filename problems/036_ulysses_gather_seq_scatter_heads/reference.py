"""Ulysses exchange before attention: from sequence shards with all heads to the full sequence with a head shard.

DeepSpeed-Ulysses sequence parallelism (as implemented in VeOmni) runs the projections on sequence shards but attention on
whole sequences of a few heads; this exchange lies between the two, once each for queries, keys and values.

Every rank of the group holds its sequence shard with all heads; shards have the same shape. The global sequence may have
been padded at its end to make the shards equal.
"""

import torch
import torch.distributed as dist


def solution(
    x: torch.Tensor,
    seq_dim: int,
    head_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int = 0,
) -> torch.Tensor:
    """Return the whole sequence of this rank's heads: (B, W * T, h / W, d) from (B, T, h, d).

    seq_dim: the dimension that is gathered. head_dim: the index of the head axis, which is scattered; the group size must
    divide it. unpadded_dim_size: true length of the global sequence, or 0. Padding is cut off only if that length is not a
    multiple of the group size.
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    if x.shape[head_dim] % world_size:
        raise ValueError(f"{x.shape[head_dim]} heads cannot be shared equally by {world_size} ranks")

    to_send = torch.stack(x.chunk(world_size, dim=head_dim))  # (W, ...), head shard d for rank d
    received = torch.empty_like(to_send)
    dist.all_to_all_single(received, to_send, group=group)
    full = torch.cat(received.unbind(0), dim=seq_dim)

    if unpadded_dim_size and unpadded_dim_size % world_size:
        full = full.narrow(seq_dim, 0, unpadded_dim_size)
    return full
