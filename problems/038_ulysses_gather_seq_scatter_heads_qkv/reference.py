"""Ulysses exchange of a fused QKV projection: sequence shards with all heads to the full sequence with a head shard.

The fused variant of the exchange before attention in DeepSpeed-Ulysses sequence parallelism (as implemented in VeOmni):
queries, keys and values of one projection travel together.

Every rank of the group holds its sequence shard of the projection, whose last dimension is [q, k, v], three blocks of the
same width; shards have the same shape. The global sequence may have been padded at its end to make the shards equal.
"""

import torch
import torch.distributed as dist


def solution(
    qkv_tensor: torch.Tensor,
    seq_dim: int,
    group: dist.ProcessGroup | None = None,
    unpadded_dim_size: int | None = None,
    restore_shape: bool = True,
) -> torch.Tensor:
    """Return the whole sequence of this rank's heads: (B, W * T, P / W) from (B, T, P), the last dim being [q, k, v] shards.

    seq_dim: the sequence dimension, not the last. unpadded_dim_size: true length of the global sequence, or None or 0;
    padding is cut off only if that length is not a multiple of the group size. restore_shape: if false the last dimension
    stays split in (3, P / (3 * W)). 3 must divide P, and the group size P / 3.
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    *leading, width = qkv_tensor.shape
    if width % (3 * world_size):
        raise ValueError(f"a last dimension of {width} cannot be cut into 3 blocks of {world_size} equal shards")
    seq_dim = seq_dim % qkv_tensor.dim()

    blocks = qkv_tensor.view(*leading, 3, width // 3)
    to_send = torch.stack(blocks.chunk(world_size, dim=-1))  # (W, ..., 3, P / (3 W)), head shard d for rank d
    received = torch.empty_like(to_send)
    dist.all_to_all_single(received, to_send, group=group)
    full = torch.cat(received.unbind(0), dim=seq_dim)

    if restore_shape:
        full = full.flatten(-2)
    if unpadded_dim_size and unpadded_dim_size % world_size:
        full = full.narrow(seq_dim, 0, unpadded_dim_size)
    return full
