"""K-sharded GEMM followed by a sum reduce-scatter over the rows.

C = A B with the contraction dimension spread over the ranks: rank r holds a block of columns of the activations A and the
matching block of rows of the weight B. The partial products are summed over the ranks and every rank keeps its own block
of rows. This is the row-parallel linear layer of Megatron-LM style tensor parallelism when the activations that follow
are sequence-parallel.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    """Return row block ``rank`` of A B, shape (M / world_size, N).

    A_local: (M, K_local), B_local: (K_local, N), same dtype. The local product accumulates in fp32 and is rounded to the input
    dtype, in which the sum over the ranks is formed. Raises an error if world_size does not divide M or the inner dimensions
    differ.
    """
    partial = torch.matmul(A_local.contiguous(), B_local.contiguous())  # (M, N)
    rows, cols = partial.shape
    output = torch.empty(rows // dist.get_world_size(), cols, dtype=partial.dtype, device=partial.device)
    dist.reduce_scatter_tensor(output, partial, op=dist.ReduceOp.SUM)
    return output
