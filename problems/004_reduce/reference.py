"""Sum-reduce of one dense tensor to a single destination rank.

Every rank holds one addend of the same shape and dtype. The destination returns the element-wise sum over all ranks,
every other rank a copy of its own addend. Losses and metrics reach the logging rank this way.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor, dst: int = 0) -> torch.Tensor:
    """Return the sum of ``tensor`` over all ranks on rank ``dst`` and a copy of ``tensor`` elsewhere."""
    total = tensor.clone()
    dist.reduce(total, dst=dst, op=dist.ReduceOp.SUM)
    # A reduce leaves the buffers of other ranks undefined (gloo puts partial sums there).
    return total if dist.get_rank() == dst else tensor.clone()
