"""Adam on a flat parameter shard, followed by an all-gather of the updated shards.

The end of a ZeRO or FSDP training step: gradients have already been reduced to the shard of each rank; the owner updates its
master weights, and every rank receives the complete new parameters.

Each rank holds the gradient, the master weights and both Adam moments of its own shard of p elements (p is the same on all
ranks). The updated moments are not returned.
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    grad_shard: torch.Tensor,
    master_shard: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> torch.Tensor:
    """Return the updated parameters of all ranks, (W * p,), shards in rank order; inputs stay unchanged.

    All tensors: (p,). step counts from 1.
    """
    assert step >= 1, "step counts from 1"
    assert grad_shard.numel() > 0, "the shard is empty"

    w, m, v = master_shard.clone(), exp_avg.clone(), exp_avg_sq.clone()
    m.mul_(beta1).add_(grad_shard, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(grad_shard, grad_shard, value=1 - beta2)
    denominator = (v / (1 - beta2**step)).sqrt_().add_(eps)
    update = (m / (1 - beta1**step)).div_(denominator)
    w.add_(update.mul_(-lr))

    gathered = w.new_empty(dist.get_world_size() * w.numel())
    dist.all_gather_into_tensor(gathered, w)
    return gathered
