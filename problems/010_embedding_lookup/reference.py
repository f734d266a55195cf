"""Lookup in an embedding table whose rows are sharded over the ranks, by request and reply.

Rank r owns rows r*V .. (r+1)*V - 1 of a table of world_size*V rows and wants rows of the whole table. It sends each owner
the row numbers it wants from it, and the owners send the rows back: two all-to-alls of unequal blocks, after one that
tells the block lengths. This is row-wise sharding of large embedding tables as in TorchRec, and of vocabulary-parallel
input embeddings. The rows are returned in the order in which the replies arrive (owner by owner, and within one owner in
the order of ``indices``), not in the order of ``indices``.
"""

import torch
import torch.distributed as dist


def solution(indices: torch.Tensor, local_shard: torch.Tensor) -> torch.Tensor:
    """Return the rows named by ``indices``, stably ordered by owner.

    indices: (n,) int64, global row numbers; n may differ by rank and be 0. local_shard: (V, D), V equal on all ranks.
    Returns (n, D) in the dtype of local_shard: row i belongs to the i-th index after a stable sort by owner = index // V.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    rows_per_rank, width = local_shard.shape
    indices = indices.to(local_shard.device).contiguous()

    # which indices go to which owner, each list in the original order, duplicates kept
    owner = indices // rows_per_rank
    requests_by_owner = [indices[owner == q] for q in range(world_size)]
    send_counts = torch.tensor([len(r) for r in requests_by_owner], dtype=torch.int64, device=indices.device)

    # tell each owner how many requests to expect
    receive_counts = torch.empty_like(send_counts)
    dist.all_to_all_single(receive_counts, send_counts)
    sent, received = send_counts.tolist(), receive_counts.tolist()

    # send the requests
    requests = torch.cat(requests_by_owner)
    incoming = torch.empty(sum(received), dtype=torch.int64, device=indices.device)
    dist.all_to_all_single(incoming, requests, output_split_sizes=received, input_split_sizes=sent)

    # serve them from the local rows
    local_rows = (incoming - rank * rows_per_rank).clamp(0, rows_per_rank - 1)
    replies = local_shard[local_rows]

    # send the rows back the way the requests came
    rows = torch.empty(indices.numel(), width, dtype=local_shard.dtype, device=local_shard.device)
    dist.all_to_all_single(rows, replies, output_split_sizes=sent, input_split_sizes=received)
    return rows
