"""One training step of a 2-layer MLP with sharded optimizer state (ZeRO stage 1).

DeepSpeed's ZeRO stage 1: every rank keeps the whole model, but only one slice of the Adam state. All parameters form one
flat vector W1, b1, W2, b2 of P elements (row-major), cut into W equal slices wherever the cuts fall.

Each rank holds its rows of the batch and the moments of its own slice. Parameters count only on rank 0, from where they are
broadcast; the other ranks hold stale values. Every rank averages the complete gradient over all ranks, updates its own slice
of the parameters, and receives the other slices from their owners.
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


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    W1: torch.Tensor,
    b1: torch.Tensor,
    W2: torch.Tensor,
    b2: torch.Tensor,
    exp_avg_part: torch.Tensor,
    exp_avg_sq_part: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """Return the updated W1, b1, W2, b2 (whole) and both moments of the own slice; inputs stay unchanged.

    X_local: (rows, d_in) and y_local: (rows, d_out), this rank's samples. W1: (h, d_in), b1: (h,), W2: (d_out, h),
    b2: (d_out,). exp_avg_part, exp_avg_sq_part: (P / W,). step counts from 1.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()

    # Everybody starts from rank 0's parameters.
    flat = flatten([W1, b1, W2, b2])
    dist.broadcast(flat, src=0)
    slice_size = exp_avg_part.numel()
    assert flat.numel() == world_size * slice_size, f"{flat.numel()} parameters are not {world_size} x {slice_size}"
    own = slice(rank * slice_size, (rank + 1) * slice_size)

    # Forward and backward on the local rows.
    leaves = [p.requires_grad_() for p in unflatten(flat, [W1, b1, W2, b2])]
    with torch.enable_grad():
        hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
        loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
        flat_gradient = flatten(list(torch.autograd.grad(loss, leaves)))

    # Average the complete gradient over all ranks; only the own slice of it is used.
    dist.all_reduce(flat_gradient, op=dist.ReduceOp.SUM)
    g = flat_gradient.div_(world_size)[own]

    # Adam on the own slice.
    assert step >= 1, "step counts from 1"
    p, m, v = flat[own].clone(), exp_avg_part.clone(), exp_avg_sq_part.clone()
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    denominator = (v / (1 - beta2**step)).sqrt_().add_(eps)
    update = (m / (1 - beta1**step)).div_(denominator)
    p.add_(update.mul_(-lr))

    # Collect the updated slices.
    updated = torch.empty_like(flat)
    dist.all_gather_into_tensor(updated, p)
    return (*unflatten(updated, [W1, b1, W2, b2]), m, v)
