"""Block-wise dequantisation to fp32, then an all-to-all.

Each rank holds FP8 codes addressed to all ranks, slice d to rank d, with one scale for every ``block_size`` consecutive
elements (DeepSeek-V3 style block scaling, before a token exchange). It decodes them to fp32 and sends every rank its slice.
"""

import torch
import torch.distributed as dist


def solution(local_y: torch.Tensor, local_s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    """Return the decoded slices addressed to this rank, fp32, (world_size, M, N): slice s comes from rank s.

    local_y: (world_size, M, N), float8_e4m3fn codes (or values in bf16 or fp32). local_s: (world_size, M * N / block_size),
    fp32 scales (or bf16); flat scale j belongs to the flat elements j * block_size .. (j + 1) * block_size - 1, so that a
    block may span rows. Each output is one fp32 product. Raises AssertionError unless block_size divides the size of a slice,
    and RuntimeError if the leading dimension is not world_size.
    """
    world_size = dist.get_world_size()
    assert (local_y.numel() // world_size) % block_size == 0, "block_size must divide the number of elements per rank"

    # decode: one scale per block of the flattened tensor
    blocks = local_y.contiguous().view(-1).to(torch.float32).view(local_s.numel(), block_size)
    scales = local_s.contiguous().view(-1, 1).to(torch.float32)
    decoded = (blocks * scales).view(world_size, *local_y.shape[1:])

    # exchange: slice d goes to rank d
    output = torch.empty_like(decoded)
    dist.all_to_all_single(output, decoded)
    return output
