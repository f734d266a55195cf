"""Row-parallel linear layer: a local GEMM followed by a sum all-reduce.

C = A B with the contraction dimension spread over the ranks: rank r holds a block of columns of the activations A and the
matching block of rows of the weight B. Every rank multiplies its blocks and the partial products are summed over the
ranks. This is the second linear layer of every attention and MLP block in Megatron-LM style tensor parallelism.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    """Return A B, shape (M, N), equal on all ranks.

    A_local: (M, K_local), B_local: (K_local, N), same dtype; K_local is equal on all ranks. The local product accumulates in
    fp32 and is rounded to the input dtype, in which the sum over the ranks is formed. Raises RuntimeError if the inner
    dimensions differ.
    """
    partial = torch.matmul(A_local.contiguous(), B_local.contiguous())
    dist.all_reduce(partial, op=dist.ReduceOp.SUM)
    return partial
