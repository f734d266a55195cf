"""Sinkhorn-Knopp normalisation of teacher scores over a batch that is sharded over the ranks.

Self-distillation (DINOv2, SwAV) turns the teacher's prototype scores into assignments that use all prototypes equally:
starting from exp(scores / temperature), rows (prototypes) and columns (samples) are normalised alternately. Each rank
holds the scores of its own samples for all K prototypes, so column sums are local and row sums are reduced over the
ranks. Every rank returns the assignments of its own samples.
"""

import torch
import torch.distributed as dist


def solution(
    teacher_output: torch.Tensor,
    teacher_temp: float,
    n_masked_patches_tensor: torch.Tensor,
    n_iterations: int = 3,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the assignments of the local samples.

    teacher_output: (b, K), b may differ by rank. n_masked_patches_tensor: (1,) int64, the local samples counted in the batch
    size. All arithmetic is in float32 (or wider, if the scores are); no maximum is subtracted before exp.
    Returns (b, K); for n_iterations >= 1 every row sums to 1.
    """
    wide = torch.promote_types(teacher_output.dtype, torch.float32)
    num_prototypes = teacher_output.shape[1]
    q = torch.exp(teacher_output.to(wide) / teacher_temp).t()  # prototypes x samples

    batch = n_masked_patches_tensor.to(wide)
    dist.all_reduce(batch, group=group)

    total = q.sum()
    dist.all_reduce(total, group=group)
    q = q / total

    for _ in range(n_iterations):
        # Every prototype gets the weight 1 / K over the whole batch.
        prototype_sums = q.sum(dim=1, keepdim=True)
        dist.all_reduce(prototype_sums, group=group)
        q = q / prototype_sums
        q = q / num_prototypes
        # Every sample gets the weight 1 / batch.
        q = q / q.sum(dim=0, keepdim=True)
        q = q / batch

    q = q * batch
    return q.t().contiguous()
