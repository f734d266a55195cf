"""Block-wise FP8 (E4M3) quantisation of a local tensor, then an all-gather of codes and scales.

Every run of ``block_size`` consecutive elements of a row shares one fp32 scale, chosen so that its largest magnitude maps to
448, the largest finite E4M3 number (the 1x128 activation quantisation of DeepSeek-V3). Gathering one-byte codes and a few
scales instead of the tensor itself halves the traffic against bf16. Each rank holds its own rows; all ranks end with the
codes and scales of all rows.
"""

import torch
import torch.distributed as dist

FP8_MAX = 448.0


def quantize_blocks(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (float8_e4m3fn, shape of x) and scales (fp32, one per block of the last dimension) of x."""
    blocks = x.contiguous().view(*x.shape[:-1], -1, block_size).to(torch.float32)
    scales = blocks.abs().amax(dim=-1) / FP8_MAX
    divisors = torch.where(scales == 0, 1.0, scales)  # an all-zero block keeps scale 0 and gets codes 0
    scaled = (blocks / divisors.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX)
    codes = scaled.to(torch.float8_e4m3fn).view(x.shape)  # round to nearest, ties to even
    return codes, scales


def gather_rows(x: torch.Tensor) -> torch.Tensor:
    """All ranks' tensors, joined in rank order along dimension 0."""
    gathered = torch.empty(dist.get_world_size() * x.shape[0], *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(gathered, x.contiguous())
    return gathered


def solution(local_tensor: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes, scales) of all ranks' rows, equal on all ranks.

    local_tensor: (M, N) or (..., N), floating point. block_size: a power of two that divides N; AssertionError if it does not.
    Returns float8_e4m3fn codes, (world_size * M, N), and fp32 scales, (world_size * M, N / block_size).
    """
    assert local_tensor.shape[-1] % block_size == 0, "block_size must divide the last dimension"
    codes, scales = quantize_blocks(local_tensor, block_size)
    if not dist.is_initialized():
        return codes, scales
    # the codes travel as raw bytes: collectives need not know the FP8 type
    all_codes = gather_rows(codes.view(torch.uint8)).view(torch.float8_e4m3fn)
    all_scales = gather_rows(scales)
    return all_codes, all_scales
