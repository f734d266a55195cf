"""Clipping by the global norm of gradients that are sharded over a group.

With FSDP every rank holds one shard of each parameter's gradient. The norm over all parameters needs every shard: each rank
adds up the p-th powers of its own, the group sums them, and if the norm exceeds the threshold, all gradients are scaled
down in place by the same factor (VeOmni's clipping for FSDP2 without expert parallelism). All ranks of the group return
the same norm.
"""

import torch
import torch.distributed as dist


def solution(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the global norm before clipping, a 0-d fp32 tensor, and clip ``grad_tensors`` in place.

    grad_tensors: this rank's shards, of any shapes (0 elements included); dtypes may be mixed, None entries are skipped.
    norm_type: the exponent p, finite. fsdp_group: the group over which the shards are spread; None means no reduction at all.
    """
    grads = [grad for grad in grad_tensors if grad is not None]
    device = grads[0].device if grads else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fp32 = torch.promote_types(grads[0].dtype, torch.float32) if grads else torch.float32  # or float64 if that is given

    # sum of |g|^p over this rank's shards, then over the group
    power_sum = torch.zeros((), dtype=fp32, device=device)
    for grad in grads:
        power_sum += torch.linalg.vector_norm(grad.to(fp32), norm_type) ** norm_type
    if fsdp_group is not None:
        dist.all_reduce(power_sum, op=dist.ReduceOp.SUM, group=fsdp_group)
    total_norm = power_sum ** (1.0 / norm_type)

    # clip: no epsilon, and nothing changes at or below the threshold
    if total_norm > max_norm:
        coefficient = max_norm / total_norm
        for grad in grads:
            grad.copy_(grad.to(fp32) * coefficient)  # product in fp32, rounded once to the gradient's dtype
    return total_norm
