"""All-gather of K-sharded activations followed by a GEMM.

C = A B, where the columns of A (M, K) are spread over the ranks and B (K, N) is this rank's own right factor, typically its
column block of a tensor-parallel weight: a linear layer whose input arrives sharded along features (Megatron-LM style
tensor parallelism). Each rank holds the K/world_size columns of A that follow those of the rank before it.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return A B, contiguous, shape (M, N).

    A_local: (M, K / world_size), this rank's columns of A. B: (K, N), same dtype. The product accumulates in fp32 and is
    rounded once to the input dtype. Raises RuntimeError if B does not have K rows.
    """
    block = A_local.contiguous()
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)

    A = torch.cat(blocks, dim=1)  # (M, K), columns in rank order
    return torch.matmul(A, B)
