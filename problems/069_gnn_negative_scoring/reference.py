"""Rank every positive edge among its negatives, over the score blocks of all ranks.

Link-prediction evaluation (GraphStorm, DGL) reports mean reciprocal ranks: for each positive edge of the validation
set, the position of its score among the scores of k negative edges. Each rank has scored its own block of positives:
it holds p_r positive scores (p_r differs by rank and may be 0) and, for each, the scores of its k negatives. Every
rank returns the ranks of all positives, blocks in rank order.

This is the plain form: it gathers all scores and ranks them everywhere. Only the result is fixed; ranking locally and
gathering one integer per positive is just as legal.
"""

import torch
import torch.distributed as dist


def gather_blocks(block: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenate along dimension 0, in rank order, the blocks of all ranks, whose lengths may differ."""
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return block
    rank = dist.get_rank(group)
    sizes = torch.zeros(world_size, dtype=torch.int64, device=block.device)
    sizes[rank] = block.shape[0]
    dist.all_reduce(sizes, group=group)
    receive_splits = sizes.tolist()
    send_splits = [block.shape[0]] * world_size

    copies = torch.cat([block] * world_size)
    gathered = torch.empty(sum(receive_splits), *block.shape[1:], dtype=block.dtype, device=block.device)
    dist.all_to_all_single(gathered, copies, receive_splits, send_splits, group=group)
    return gathered


def solution(
    local_pos_scores: torch.Tensor,
    local_neg_scores: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the 1-based rank of every positive among its k negatives.

    local_pos_scores: (p_r,). local_neg_scores: (p_r, k). Returns (P,) int64, P the sum of p_r over ranks, values in
    [1, k + 1], the same on all ranks. Scores are compared after a sigmoid rounded to their own dtype; the sort is stable,
    so a tie counts in favour of the positive: rank = 1 + number of negatives whose rounded sigmoid is strictly greater.
    """
    positives = gather_blocks(local_pos_scores, group)
    negatives = gather_blocks(local_neg_scores, group)

    scores = torch.sigmoid(torch.cat([positives[:, None], negatives], dim=1))
    order = torch.argsort(scores, dim=1, descending=True, stable=True)
    # Column 0 is the positive: find the place where it went.
    return (order == 0).to(torch.uint8).argmax(dim=1) + 1
