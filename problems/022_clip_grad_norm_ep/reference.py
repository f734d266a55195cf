"""Clipping by the global norm when some gradients belong to experts spread over an expert-parallel group.

With FSDP and expert parallelism together, dense parameters are sharded over one group of ranks, while each expert lives on
one rank of ``ep_group`` and is sharded over ``ep_fsdp_group``. Expert gradients are first divided by the expert-parallel
degree. The p-th powers of dense gradients are then summed over the FSDP group, those of expert gradients over both expert
groups; if the norm of all together exceeds the threshold, all gradients are scaled down in place (VeOmni's clipping for
FSDP2 with expert parallelism). Each rank holds its shards of both kinds; all ranks return the same norm.
"""

import torch
import torch.distributed as dist


def local_power_sum(grads: list[torch.Tensor | None], norm_type: float) -> torch.Tensor:
    """Sum of |g|^p over all elements of this rank's gradients, a 0-d fp32 tensor; None entries are skipped."""
    present = [grad for grad in grads if grad is not None]
    if not present:
        return torch.zeros((), dtype=torch.float32, device="cuda" if torch.cuda.is_available() else "cpu")
    fp32 = torch.promote_types(present[0].dtype, torch.float32)  # or float64 if that is given
    power_sum = torch.zeros((), dtype=fp32, device=present[0].device)
    for grad in present:
        power_sum += torch.linalg.vector_norm(grad.to(fp32), norm_type) ** norm_type
    return power_sum


def solution(
    non_ep_grad_tensors: list[torch.Tensor | None],
    ep_grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    ep_size: int = 1,
    fsdp_group: dist.ProcessGroup | None = None,
    ep_fsdp_group: dist.ProcessGroup | None = None,
    ep_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the global norm before clipping, a 0-d fp32 tensor; scale and clip both lists in place.

    non_ep_grad_tensors, ep_grad_tensors: this rank's shards of dense and of expert gradients, of any shapes; dtypes may be
    mixed. norm_type: the exponent p, finite. ep_size: expert-parallel degree. fsdp_group: ranks that share the dense
    gradients. ep_fsdp_group: ranks that share the same experts. ep_group: ranks with different experts. None for a group
    means that its reduction is skipped.
    """
    # expert gradients are averaged over the expert-parallel ranks, whether or not clipping follows
    if ep_size > 1:
        for grad in ep_grad_tensors:
            if grad is not None:
                grad.mul_(1.0 / ep_size)

    dense_sum = local_power_sum(non_ep_grad_tensors, norm_type)
    if fsdp_group is not None:
        dist.all_reduce(dense_sum, op=dist.ReduceOp.SUM, group=fsdp_group)

    expert_sum = local_power_sum(ep_grad_tensors, norm_type)
    if ep_fsdp_group is not None:
        dist.all_reduce(expert_sum, op=dist.ReduceOp.SUM, group=ep_fsdp_group)
    if ep_group is not None:
        dist.all_reduce(expert_sum, op=dist.ReduceOp.SUM, group=ep_group)

    total_norm = (dense_sum + expert_sum) ** (1.0 / norm_type)

    # clip: no epsilon, and nothing changes at or below the threshold
    if total_norm > max_norm:
        coefficient = max_norm / total_norm
        for grad in [*non_ep_grad_tensors, *ep_grad_tensors]:
            if grad is not None:
                grad.copy_(grad.to(total_norm.dtype) * coefficient)  # product in fp32, rounded once to the gradient's dtype
    return total_norm
