"""One complete fully-sharded training step of a 2-layer MLP: parameter all-gather, backward, gradient reduce-scatter, AdamW.

PyTorch FSDP with one flat parameter, or ZeRO stage 3: parameters, averaged gradients and optimizer state all exist only as
slices. The parameters W1, b1, W2, b2 form one flat vector of P elements (row-major), cut into W equal slices wherever the
cuts fall; the whole vector exists only while forward and backward run.

Each rank holds its rows of the batch, and its own slice of the flat parameters and of both Adam moments.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    flat_param_shard: torch.Tensor,
    param_shapes: tuple[tuple[int, ...], ...],
    exp_avg_shard: torch.Tensor,
    exp_avg_sq_shard: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the updated slices (parameters, first moment, second moment), each (P / W,); inputs stay unchanged.

    X_local: (rows, d_in) and y_local: (rows, d_out), this rank's samples. param_shapes: of W1 (h, d_in), b1 (h,),
    W2 (d_out, h), b2 (d_out,). step counts from 1.
    """
    assert step >= 1, "step counts from 1"
    world_size = dist.get_world_size()

    # Collect the whole model.
    flat = flat_param_shard.new_empty(world_size * flat_param_shard.numel())
    dist.all_gather_into_tensor(flat, flat_param_shard)
    parts = flat.split([math.prod(shape) for shape in param_shapes])
    leaves = [part.view(tuple(shape)).requires_grad_() for part, shape in zip(parts, param_shapes, strict=True)]

    # Forward and backward on the local rows.
    with torch.enable_grad():
        hidden = F.relu(F.linear(X_local, leaves[0], leaves[1]))
        loss = F.mse_loss(F.linear(hidden, leaves[2], leaves[3]), y_local)
        flat_gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, leaves)])

    # Average the gradient over all ranks; each rank receives its own slice only.
    g = torch.empty_like(flat_param_shard)
    dist.reduce_scatter_tensor(g, flat_gradient, op=dist.ReduceOp.SUM)
    g.div_(world_size)

    # AdamW on the own slice; the decay acts on the parameters as they were.
    p, m, v = flat_param_shard.clone(), exp_avg_shard.clone(), exp_avg_sq_shard.clone()
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    denominator = (v / (1 - beta2**step)).sqrt_().add_(eps)
    update = (m / (1 - beta1**step)).div_(denominator)
    p.add_(update, alpha=-lr)
    p.add_(flat_param_shard, alpha=-lr * weight_decay)
    return p, m, v
