"""Sum all-reduce of one dense tensor.

Every rank holds one addend of the same shape and dtype; every rank returns the element-wise sum over all ranks in a
fresh tensor. This is the exchange behind every data-parallel gradient average and every row-parallel linear layer
(PyTorch DDP, Megatron-LM): the input stays untouched because the caller still needs it.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of ``tensor`` over all ranks: same shape, dtype and device, in a new tensor."""
    total = tensor.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total
