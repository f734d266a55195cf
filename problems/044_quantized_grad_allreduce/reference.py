"""Average of block-wise int8 quantised gradients over all ranks.

Data-parallel training with compressed gradients (in the manner of ZeRO++): what travels is one int8 code per element and one
fp32 scale per block of consecutive elements. Each gradient is quantised exactly once, on the rank that owns it; the average
is taken over the dequantised values, in fp32. Here they are dequantised before the reduction, so that fp32 travels; the
saving is left to whoever moves the codes.

Each rank holds its own gradient, of the same shape on all ranks; all return the same average.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(flat_grad: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the average over all ranks of the quantised gradients: shape and dtype of ``flat_grad``, in a new tensor.

    flat_grad: (n,), or any shape, taken row-major. block_size: elements that share one scale; the last block may be short.
    Divisions are true divisions (not products with a rounded reciprocal), hence the divisors on the device.
    """
    assert block_size >= 1, "a block has at least one element"
    n = flat_grad.numel()
    padded = F.pad(flat_grad.reshape(-1), (0, -n % block_size))
    blocks = padded.view(-1, block_size)

    # Quantise: the largest magnitude of a block becomes code 127.
    largest = blocks.abs().amax(dim=1, keepdim=True).to(torch.float32).clamp(min=1e-8)
    scales = largest / torch.full((), 127.0, dtype=torch.float32, device=largest.device)
    codes = torch.round(blocks.to(torch.float32) / scales).clamp(-127, 127).to(torch.int8)  # halves to even

    # Dequantise, average in fp32, round once.
    total = (codes.to(torch.float32) * scales).view(-1)[:n]
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    average = total / torch.full((), float(dist.get_world_size()), dtype=torch.float32, device=total.device)
    return average.to(flat_grad.dtype).view(flat_grad.shape)
