"""Ulysses attention layer: QKV projection, exchange, attention, exchange back, output projection.

A multi-head self-attention layer under DeepSpeed-Ulysses sequence parallelism (as implemented in VeOmni), the way long
sequences are trained: projections work on sequence shards with all heads, attention on the whole sequence of a few heads,
and an all-to-all changes from one layout to the other.

Every rank of the group holds the hidden states of its shard of the sequence (shards have the same length, rank order is
sequence order) and a replica of both weight matrices.
"""

import torch
import torch.distributed as dist


def exchange(x: torch.Tensor, scatter_dim: int, gather_dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Cut ``scatter_dim`` into one equal piece per rank, swap pieces, join what arrives along ``gather_dim``."""
    to_send = torch.stack(x.chunk(dist.get_world_size(group), dim=scatter_dim))
    received = torch.empty_like(to_send)
    dist.all_to_all_single(received, to_send, group=group)
    return torch.cat(received.unbind(0), dim=gather_dim)


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    num_heads: int = 8,
    causal: bool = False,
) -> torch.Tensor:
    """Return the layer's output for this rank's shard of the sequence, (B, S / W, H).

    hidden_states: (B, S / W, H). w_qkv: (3 * D, H), row blocks for queries, keys and values, D = num_heads * head size.
    w_o: (H, D). causal: whether a position attends only to itself and to earlier ones (of the whole sequence).
    Raises AssertionError if D is not a multiple of num_heads, or num_heads not one of the group size.
    """
    group = group if group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    width = w_qkv.shape[0] // 3
    head_size = width // num_heads
    assert width == num_heads * head_size, f"a projection of width {width} does not consist of {num_heads} equal heads"
    assert num_heads % world_size == 0, f"{num_heads} heads cannot be shared equally by {world_size} ranks"
    batch, shard_length, _ = hidden_states.shape

    # Projection of the local shard, all heads.
    qkv = (hidden_states @ w_qkv.T).view(batch, shard_length, 3, num_heads, head_size)

    # From sequence shards to head shards, then heads before the sequence: (B, heads / W, S, head size).
    q, k, v = (exchange(part, scatter_dim=2, gather_dim=1, group=group).transpose(1, 2) for part in qkv.unbind(2))

    # Attention over the whole sequence.
    scores = (q @ k.transpose(-2, -1)) * head_size**-0.5
    if causal:
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    attended = torch.softmax(scores, dim=-1) @ v

    # From head shards back to sequence shards, and the output projection.
    local = exchange(attended.transpose(1, 2), scatter_dim=1, gather_dim=2, group=group)
    return local.reshape(batch, shard_length, width) @ w_o.T
