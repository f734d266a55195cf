"""k nearest neighbours of every rank's queries among training features that are sharded over the ranks.

Self-supervised vision models (DINOv2) are evaluated by a k-NN vote: millions of training features do not fit one GPU, so
each rank holds a shard of them (transposed, with their labels) and its own queries. In turn every rank broadcasts its
queries, all ranks find the k best matches in their shards, and the owner merges the candidates. Every rank returns the
similarities and labels of the k best matches of its own queries.
"""

import torch
import torch.distributed as dist


def solution(
    test_features_rank: torch.Tensor,
    train_features_rank_T: torch.Tensor,
    train_labels_rank: torch.Tensor,
    max_k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (similarities, labels) of the max_k best matches of each own query over all shards, best first.

    test_features_rank: (Q, D), Q may differ by rank. train_features_rank_T: (D, n). train_labels_rank: (1, n) int64.
    Similarity is the inner product, in the features' dtype. The order of equal similarities is left open.
    Returns (Q, max_k) in the features' dtype and (Q, max_k) int64. Raises ValueError if max_k > n.
    """
    world_size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    device = test_features_rank.device
    shard_size = train_features_rank_T.shape[1]
    if max_k > shard_size:
        raise ValueError(f"max_k={max_k} exceeds the {shard_size} training features of a rank")

    result = None
    for owner in range(world_size):
        root = owner if group is None else dist.get_global_rank(group, owner)

        # The owner's queries go to all ranks.
        shape = torch.tensor(test_features_rank.shape, dtype=torch.int64, device=device)
        dist.broadcast(shape, src=root, group=group)
        if rank == owner:
            queries = test_features_rank.contiguous()
        else:
            queries = torch.empty(*shape.tolist(), dtype=test_features_rank.dtype, device=device)
        dist.broadcast(queries, src=root, group=group)

        # Best matches in the own shard.
        similarity = queries @ train_features_rank_T
        values, columns = similarity.topk(max_k, dim=-1, largest=True, sorted=True)
        labels = train_labels_rank.expand(queries.shape[0], -1).gather(1, columns)

        # The owner collects the candidates of all shards and keeps the best.
        value_parts = [torch.empty_like(values) for _ in range(world_size)] if rank == owner else None
        label_parts = [torch.empty_like(labels) for _ in range(world_size)] if rank == owner else None
        dist.gather(values, value_parts, dst=root, group=group)
        dist.gather(labels, label_parts, dst=root, group=group)
        if value_parts is not None and label_parts is not None:
            best, places = torch.cat(value_parts, dim=-1).topk(max_k, dim=-1, largest=True, sorted=True)
            result = best, torch.cat(label_parts, dim=-1).gather(1, places)

    if result is None:
        raise RuntimeError("this rank never owned the queries")
    return result
