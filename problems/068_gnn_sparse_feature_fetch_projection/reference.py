"""Fetch rows of a row-sharded embedding table by global id and project them.

Graph training at scale (DGL, GraphStorm) keeps learnable node embeddings in one table whose rows are spread over the
GPUs. Each rank holds rows [rank * c, (rank + 1) * c) of the table of V rows, c = ceil(V / world size) (the last shard may
be shorter), a list of global node ids that its mini-batch needs (duplicates allowed, a different number on each rank),
and the projection matrix of the input layer. Every rank returns one projected row per id that it asked for, in the
order of the ids.
"""

import torch
import torch.distributed as dist


def solution(
    local_embedding_shard: torch.Tensor,
    input_node_ids: torch.Tensor,
    proj_matrix: torch.Tensor,
    num_total_nodes: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return table[input_node_ids] @ proj_matrix.

    local_embedding_shard: (n_shard, d). input_node_ids: (q,) int64, values in [0, num_total_nodes). proj_matrix: (d, o).
    Returns (q, o) in the table's dtype.
    """
    world_size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    device = input_node_ids.device
    dim = local_embedding_shard.shape[1]
    rows_per_rank = (num_total_nodes + world_size - 1) // world_size

    # Group the wanted ids by the rank that owns them.
    owner = torch.clamp(input_node_ids // rows_per_rank, max=world_size - 1)
    _, order = torch.sort(owner, stable=True)
    wanted = input_node_ids[order]
    wanted_counts = torch.bincount(owner, minlength=world_size)

    # Tell every owner how many rows are wanted from it, then which.
    served_counts = torch.empty_like(wanted_counts)
    dist.all_to_all_single(served_counts, wanted_counts, group=group)
    wanted_splits = wanted_counts.tolist()
    served_splits = served_counts.tolist()
    requests = torch.empty(sum(served_splits), dtype=torch.int64, device=device)
    dist.all_to_all_single(requests, wanted, served_splits, wanted_splits, group=group)

    # Serve the requests from the local rows and send the rows back.
    served = local_embedding_shard[requests - rank * rows_per_rank]
    received = torch.empty(wanted.shape[0], dim, dtype=served.dtype, device=device)
    dist.all_to_all_single(received, served, wanted_splits, served_splits, group=group)

    # Undo the grouping by owner, then project.
    rows = torch.empty_like(received)
    rows[order] = received
    return rows @ proj_matrix
