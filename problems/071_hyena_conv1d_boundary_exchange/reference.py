"""Causal depthwise convolution of a sequence that is sharded in zigzag order.

Long-context Hyena models (Evo 2, Savanna) split the sequence into 2W chunks and give rank r the chunks r (called a) and
2W - 1 - r (called b), so that causal work is balanced. Each rank holds both chunks, concatenated along the sequence, and
the same depthwise filter of K taps. A chunk needs the last K - 1 positions of the chunk before it: for a that is the
previous rank's a, for b it is the next rank's b, so only neighbours exchange data.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the causal convolution of the whole sequence, in the same zigzag layout.

    x: (B, D, 2c), chunk a then chunk b. weight: (D, 1, K), the last tap multiplies the current position; 2 <= K <= c + 1.
    Returns (B, D, 2c).
    """
    world_size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    channels = x.shape[1]
    halo = weight.shape[2] - 1
    a, b = x.chunk(2, dim=2)
    tail_a = a[:, :, -halo:].contiguous()
    tail_b = b[:, :, -halo:].contiguous()

    def peer(group_rank: int) -> int:
        return group_rank if group is None else dist.get_global_rank(group, group_rank)

    # Rank 0 starts the sequence; on the last rank chunk b follows its own chunk a.
    halo_a = torch.zeros_like(tail_a)
    halo_b = tail_a.clone()
    exchange = []
    if rank < world_size - 1:  # tails of a travel up, tails of b travel down
        exchange.append(dist.P2POp(dist.isend, tail_a, peer(rank + 1), group))
        exchange.append(dist.P2POp(dist.irecv, halo_b, peer(rank + 1), group))
    if rank > 0:
        exchange.append(dist.P2POp(dist.irecv, halo_a, peer(rank - 1), group))
        exchange.append(dist.P2POp(dist.isend, tail_b, peer(rank - 1), group))
    if exchange:
        for work in dist.batch_isend_irecv(exchange):
            work.wait()

    y_a = F.conv1d(torch.cat([halo_a, a], dim=2), weight, groups=channels)
    y_b = F.conv1d(torch.cat([halo_b, b], dim=2), weight, groups=channels)
    return torch.cat([y_a, y_b], dim=2)
