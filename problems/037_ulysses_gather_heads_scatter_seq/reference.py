"""Ulysses exchange after attention: from the full sequence with a head shard to sequence shards with all heads.

DeepSpeed-Ulysses sequence parallelism (as implemented in VeOmni) runs attention on whole sequences of a few heads and the
output projection on sequence shards with all heads; this exchange lies between the two.

Every rank of the group holds the full sequence of its own heads; all hold the same shape. If the sequence does not divide
by the group size it is padded with zeros at its end, and the padding stays in the result.
"""

import torch
import torch.distributed as dist


def solution(x: torch.Tensor, seq_dim: int, head_dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return this rank's part of the sequence with all heads: (B, ceil(T / W), W * h, d) from (B, T, h, d).

    seq_dim: the dimension that is scattered. head_dim: the index of the head axis, which is gathered.
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)

    missing = -x.shape[seq_dim] % world_size
    if missing:
        shape = list(x.shape)
        shape[seq_dim] = missing
        x = torch.cat([x, x.new_zeros(shape)], dim=seq_dim)

    to_send = torch.stack(x.chunk(world_size, dim=seq_dim))  # (W, ...), sequence shard d for rank d
    received = torch.empty_like(to_send)
    dist.all_to_all_single(received, to_send, group=group)
    return torch.cat(received.unbind(0), dim=head_dim)
