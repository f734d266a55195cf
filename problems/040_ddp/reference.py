"""One data-parallel training step of a 2-layer MLP: broadcast, local backward, gradient all-reduce, Adam.

What PyTorch's DistributedDataParallel does with a single flat bucket, followed by Adam. The batch is split by rows over the
ranks; model and optimizer state are replicated.

Each rank holds its rows of the batch. Parameters and both Adam moments count only on rank 0, from where they are broadcast;
the other ranks hold stale values. All ranks return the same updated state.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All elements, row-major, in one fresh 1-D tensor."""
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Consecutive parts of ``flat``, viewed with the shapes of ``like``."""
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]


def broadcast_from_root(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fresh copies of rank 0's tensors, sent as one flat buffer."""
    flat = flatten(tensors)
    dist.broadcast(flat, src=0)
    return unflatten(flat, tensors)


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    W1: torch.Tensor,
    b1: torch.Tensor,
    W2: torch.Tensor,
    b2: torch.Tensor,
    exp_avg_W1: torch.Tensor,
    exp_avg_b1: torch.Tensor,
    exp_avg_W2: torch.Tensor,
    exp_avg_b2: torch.Tensor,
    exp_avg_sq_W1: torch.Tensor,
    exp_avg_sq_b1: torch.Tensor,
    exp_avg_sq_W2: torch.Tensor,
    exp_avg_sq_b2: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """Return the updated W1, b1, W2, b2, their first moments and their second moments (12 tensors); inputs stay unchanged.

    X_local: (rows, d_in) and y_local: (rows, d_out), this rank's samples. W1: (h, d_in), b1: (h,), W2: (d_out, h),
    b2: (d_out,); exp_avg_* and exp_avg_sq_* have the shapes of the parameters. step counts from 1.
    """
    world_size = dist.get_world_size()

    # Everybody starts from rank 0's state.
    parameters = broadcast_from_root([W1, b1, W2, b2])
    first_moments = broadcast_from_root([exp_avg_W1, exp_avg_b1, exp_avg_W2, exp_avg_b2])
    second_moments = broadcast_from_root([exp_avg_sq_W1, exp_avg_sq_b1, exp_avg_sq_W2, exp_avg_sq_b2])

    # Forward and backward on the local rows.
    leaves = [p.requires_grad_() for p in parameters]
    with torch.enable_grad():
        hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
        loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
        gradients = list(torch.autograd.grad(loss, leaves))

    # Average the gradients over all ranks.
    flat_gradient = flatten(gradients)
    dist.all_reduce(flat_gradient, op=dist.ReduceOp.SUM)
    flat_gradient.div_(world_size)
    gradients = unflatten(flat_gradient, gradients)

    # Adam, in place on the fresh buffers.
    assert step >= 1, "step counts from 1"
    with torch.no_grad():
        for p, g, m, v in zip(leaves, gradients, first_moments, second_moments, strict=True):
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            denominator = (v / (1 - beta2**step)).sqrt_().add_(eps)
            update = (m / (1 - beta1**step)).div_(denominator)
            p.add_(update.mul_(-lr))
    return (*leaves, *first_moments, *second_moments)
