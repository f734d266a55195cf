"""Column-parallel GEMM whose output is gathered on every rank.

C = A B with the columns of the weight B spread over the ranks, as in the first linear layer of a tensor-parallel block and
in vocabulary-parallel output layers (Megatron-LM). Each rank multiplies its left factor A, nominally the replicated
activations, with its block of columns; then the blocks are gathered and joined along the columns on every rank.
"""

import torch
import torch.distributed as dist


def solution(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return all ranks' products side by side: contiguous, shape (M, world_size * N_local), equal on all ranks.

    A: (M, K). B: (K, N_local), same dtype. Columns q*N_local .. (q+1)*N_local - 1 are rank q's A times rank q's B, accumulated
    in fp32 and rounded once to the input dtype. M and N_local are equal on all ranks. Raises RuntimeError if the inner
    dimensions differ.
    """
    block = torch.matmul(A.contiguous(), B.contiguous())
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)
    return torch.cat(blocks, dim=1)
