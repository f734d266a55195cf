"""Cooperative mini-batching, forward: send the requested feature rows to the ranks that asked for them.

The ranks work on one mini-batch together. Each rank holds the features of its unique seed nodes and a list of rows that its
peers (and itself) have asked for; the lists of what to send and receive were settled when the ids were exchanged. All lists
number the peers relative to the rank: entry i belongs to rank (rank + i) % W, entry 0 to the rank itself. This is the feature
exchange of cooperative graph convolution (DGL GraphBolt).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    local_features: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the rows this rank asked for, (sum(counts_sent), ...), own rows first, then those of rank + 1, rank + 2, ...

    local_features: (S, ...) rows of this rank's unique seeds. seed_inverse_ids: (sum(counts_received),) the row wanted by each
    request, in relative order of the requesters. The counts are named after the exchange of ids, which went the other way:
    counts_received[i] rows go to rank (rank + i) % W now, counts_sent[i] rows come from it. group: None is the world.
    """
    group = dist.group.WORLD if group is None else group
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    # Pack the wanted rows; chunk i is for rank (rank + i) % W.
    chunks = local_features[seed_inverse_ids].split(counts_received)

    # The exchange wants absolute order: what goes to rank j is chunk (j - rank) % W.
    relative = [(j - rank) % world for j in range(world)]
    send = torch.cat([chunks[i] for i in relative])
    send_rows = [counts_received[i] for i in relative]
    receive_rows = [counts_sent[i] for i in relative]
    received = send.new_empty(sum(receive_rows), *send.shape[1:])
    dist.all_to_all_single(received, send, receive_rows, send_rows, group=group)

    # Back to relative order.
    pieces = received.split(receive_rows)
    return torch.cat([pieces[(rank + i) % world] for i in range(world)])
