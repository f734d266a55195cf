"""Cooperative mini-batching, backward: return the gradients of exchanged feature rows to their owners and add them up.

In the forward pass each rank sent rows of its unique seed features to the ranks that had asked for them, the same row possibly
many times. Now every gradient row travels back to the rank that owns the seed, and the owner sums the rows of each seed. All
lists number the peers relative to the rank: entry i belongs to rank (rank + i) % W, entry 0 to the rank itself. This is the
gradient exchange of cooperative graph convolution (DGL GraphBolt).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    grad_output: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    seed_size: int,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the summed gradients of this rank's unique seeds, (seed_size, h) in the dtype of grad_output.

    grad_output: (sum(counts_sent), h), gradients of the rows this rank obtained in the forward exchange, in relative order of
    their owners. seed_inverse_ids: (sum(counts_received),) the seed to which each arriving row belongs, in relative order of
    the sources. counts_sent[i] rows go to rank (rank + i) % W, counts_received[i] come from it. Seeds without any row get
    zeros. Sums are formed in fp32 at least. group: None is the world.
    """
    group = dist.group.WORLD if group is None else group
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    # The exchange wants absolute order: what goes to rank j is chunk (j - rank) % W.
    chunks = grad_output.split(counts_sent)
    relative = [(j - rank) % world for j in range(world)]
    send = torch.cat([chunks[i] for i in relative])
    send_rows = [counts_sent[i] for i in relative]
    receive_rows = [counts_received[i] for i in relative]
    received = send.new_empty(sum(receive_rows), send.shape[1])
    dist.all_to_all_single(received, send, receive_rows, send_rows, group=group)

    # Back to relative order, to match seed_inverse_ids.
    pieces = received.split(receive_rows)
    arrived = torch.cat([pieces[(rank + i) % world] for i in range(world)])

    # Sum the rows of each seed.
    dtype = torch.promote_types(grad_output.dtype, torch.float32)
    sums = torch.zeros(seed_size, grad_output.shape[1], dtype=dtype, device=grad_output.device)
    return sums.index_add_(0, seed_inverse_ids, arrived.to(dtype)).to(grad_output.dtype)
