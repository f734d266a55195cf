"""All-gather of K-sharded activations, moved as transposed blocks, followed by a GEMM.

C = A B, where the columns of A (M, K) are spread over the ranks and B (K, N) is this rank's own right factor, typically its
column block of a tensor-parallel weight. The gather moves transposed blocks, so that joining them along K is a plain
concatenation of memory, and the product is formed as C^T = B^T A^T. Such layers occur in tensor-parallel Transformers
whose activations are sharded along features. Each rank holds the K/world_size columns of A that follow those of the rank
before it.
"""

import torch
import torch.distributed as dist


def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return A B, shape (M, N), as the transposed view of a contiguous (N, M) tensor.

    A_local: (M, K / world_size), this rank's columns of A. B: (K, N), same dtype. The product accumulates in fp32 and is
    rounded once to the input dtype. Raises RuntimeError if B does not have K rows.
    """
    world_size = dist.get_world_size()
    M, K_local = A_local.shape

    # transposed blocks in rank order lie one after the other: together they are A^T, (K, M)
    block = A_local.t().contiguous()
    A_transposed = torch.empty(world_size * K_local, M, dtype=A_local.dtype, device=A_local.device)
    dist.all_gather_into_tensor(A_transposed, block)

    C_transposed = torch.matmul(B.t(), A_transposed)  # (N, M)
    return C_transposed.t()
