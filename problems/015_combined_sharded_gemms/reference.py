"""Two-layer SiLU MLP whose input is sharded along features and whose output is sharded along rows.

y = silu(x W1) W2. Rank r holds a block of columns of x (the activations are feature-sharded) and full-size weights; it
returns its block of rows of y, as a sequence-parallel block expects it. The chain is that of tensor-parallel Transformer
MLPs (Megatron-LM): gather the input, two GEMMs with an activation between them, reduce-scatter the output over the rows.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(x_local: torch.Tensor, W1: torch.Tensor, W2: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of the MLP's output, shape (R / world_size, H2).

    x_local: (R, H / world_size), this rank's columns of x. W1: (H, F), W2: (F, H2), the same dtype as x_local. Both products
    accumulate in fp32 and are rounded to the input dtype, as is silu of the rounded first product; a rank's rows of y use
    that rank's own weights. Raises an error if world_size does not divide R.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    rows = x_local.shape[0]
    rows_local = rows // world_size

    # gather the columns of x
    block = x_local.contiguous()
    blocks = [torch.empty_like(block) for _ in range(world_size)]
    dist.all_gather(blocks, block)
    x = torch.cat(blocks, dim=1)  # (R, H)

    # first layer
    hidden = torch.matmul(x, W1)
    activated = F.silu(hidden)  # (R, F)

    # second layer on this rank's rows, put at their place among all rows
    own = slice(rank * rows_local, (rank + 1) * rows_local)
    contribution = torch.zeros(rows, W2.shape[1], dtype=x_local.dtype, device=x_local.device)
    contribution[own] = torch.matmul(activated[own], W2)

    # sum over the ranks, of which each keeps its rows
    output = torch.empty(rows_local, W2.shape[1], dtype=x_local.dtype, device=x_local.device)
    dist.reduce_scatter_tensor(output, contribution, op=dist.ReduceOp.SUM)
    return output
