"""SwiGLU feed-forward layer with weights sharded over a grid of FSDP x tensor-parallel ranks.

The feed-forward layer of a Llama-like model under PyTorch's 2-D parallelism. Tensor parallelism splits the inner dimension F
of the layer; FSDP splits what is left of each weight once more, along the model dimension D, and the batch.

Rank = fsdp_rank * n_tp + tp_rank. Each rank holds the rows of its FSDP rank (the same on all its tensor-parallel peers) and
its block of each of the three weights.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

_groups: dict[tuple[int, int], tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}


def grid_groups(n_tp: int, n_fsdp: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(TP group, FSDP group) of this rank; created by all ranks in the same order on the first call, and kept."""
    if (n_tp, n_fsdp) not in _groups:
        rank = dist.get_rank()
        tp_groups = [dist.new_group([j * n_tp + i for i in range(n_tp)]) for j in range(n_fsdp)]
        fsdp_groups = [dist.new_group([j * n_tp + i for j in range(n_fsdp)]) for i in range(n_tp)]
        _groups[n_tp, n_fsdp] = tp_groups[rank // n_tp], fsdp_groups[rank % n_tp]
    return _groups[n_tp, n_fsdp]


def all_gather(shard: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    """The shards of all ranks of the group, joined along ``dim`` in rank order."""
    gathered = shard.new_empty(dist.get_world_size(group) * shard.shape[0], shard.shape[1])
    dist.all_gather_into_tensor(gathered, shard.contiguous(), group=group)
    return torch.cat(gathered.chunk(dist.get_world_size(group), dim=0), dim=dim)


@torch.no_grad()
def solution(
    x_local: torch.Tensor,
    W1_shard: torch.Tensor,
    W2_shard: torch.Tensor,
    W3_shard: torch.Tensor,
    n_tp: int,
    n_fsdp: int,
) -> torch.Tensor:
    """Return the layer's output for this rank's rows, (B, D); equal on tensor-parallel peers.

    x_local: (B, D). W1_shard (gate) and W2_shard (up): (D / n_fsdp, F / n_tp). W3_shard (down): (F / n_tp, D / n_fsdp).
    """
    assert dist.get_world_size() == n_tp * n_fsdp, f"{dist.get_world_size()} ranks do not form a {n_tp} x {n_fsdp} grid"
    tp_group, fsdp_group = grid_groups(n_tp, n_fsdp)

    # Collect this tensor-parallel rank's weights over the FSDP ranks.
    W1 = all_gather(W1_shard, 0, fsdp_group)  # (D, F / n_tp)
    W2 = all_gather(W2_shard, 0, fsdp_group)  # (D, F / n_tp)
    W3 = all_gather(W3_shard, 1, fsdp_group)  # (F / n_tp, D)

    # The layer with this rank's part of the inner dimension yields a partial sum.
    inner = F.silu(x_local @ W1) * (x_local @ W2)
    output = inner @ W3
    dist.all_reduce(output, op=dist.ReduceOp.SUM, group=tp_group)
    return output
