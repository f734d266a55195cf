"""LayerNorm parameter gradients with the rows split over the ranks.

The backward pass of ``y = x_hat * gamma + beta`` sums over all rows: d_beta = sum of dY, d_gamma = sum of dY * x_hat. In
sequence-parallel and data-parallel Transformer training (Megatron-LM, PyTorch DDP) the rows of a batch lie on different
ranks while gamma and beta are replicated, so each rank sums its own rows and the partial sums are added up over the ranks.
Each rank holds the normalised activations and the upstream gradients of its rows; all ranks end with equal gradients.
"""

import torch
import torch.distributed as dist


def solution(X_hat: torch.Tensor, dY: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (d_gamma, d_beta), each (H,) in the input dtype, for X_hat and dY of shape (B, H)."""
    d_beta = dY.sum(dim=0)
    # the products are rounded to the input dtype one by one; the column sum accumulates in fp32 and rounds once
    d_gamma = (dY * X_hat).sum(dim=0)

    dist.all_reduce(d_beta, op=dist.ReduceOp.SUM)
    dist.all_reduce(d_gamma, op=dist.ReduceOp.SUM)
    return d_gamma, d_beta
