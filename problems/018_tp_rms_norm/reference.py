"""RMSNorm over a hidden dimension that is sharded across the ranks.

Under tensor parallelism a hidden state may lie spread over the ranks, each of which holds N of world_size*N features (for
instance queries and keys normalised across all heads while the heads are sharded). The mean square needs all of them, so
the ranks add up their sums of squares; then each normalises and scales its own slice.
"""

import torch
import torch.distributed as dist


def solution(local_hidden_states: torch.Tensor, local_weight: torch.Tensor, variance_epsilon: float) -> torch.Tensor:
    """Return this rank's slice of the normalised and scaled hidden states, shape of ``local_hidden_states``.

    local_hidden_states: (..., N), this rank's slice; N is equal on all ranks. local_weight: (N,), the matching scale.
    variance_epsilon is added to the mean square. Statistics and normalisation are in fp32; the result is rounded to the
    input dtype before it is scaled.
    """
    input_dtype = local_hidden_states.dtype
    x = local_hidden_states.to(torch.promote_types(input_dtype, torch.float32))  # fp32, or float64 if that is given

    sum_of_squares = x.pow(2).sum(dim=-1, keepdim=True)
    dist.all_reduce(sum_of_squares, op=dist.ReduceOp.SUM)
    hidden_size = x.shape[-1] * dist.get_world_size()
    mean_square = sum_of_squares / hidden_size

    normalised = x * torch.rsqrt(mean_square + variance_epsilon)
    return local_weight * normalised.to(input_dtype)
