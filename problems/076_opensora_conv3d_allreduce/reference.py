"""3-D convolution whose input channels are sharded over the ranks.

Video autoencoders (Open-Sora) convolve activations too large for one GPU. Each rank holds a slice of the input channels
and the matching slice of the weights for all output channels, convolves them into a partial sum of the whole output,
and the ranks add their partial sums. The bias, equal on all ranks, is added once, after the sum. Every rank returns the
whole output.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

MAX_ELEMENTS = 2**31  # library convolutions index tensors with 32 bits


def triple(x: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (x, x, x) if isinstance(x, int) else x


def output_elements(x: torch.Tensor, weight: torch.Tensor, stride, padding, dilation) -> int:
    """Number of elements of the convolution's output."""
    sizes = zip(x.shape[2:], weight.shape[2:], triple(stride), triple(padding), triple(dilation), strict=True)
    extents = [(size + 2 * pad - step * (k - 1) - 1) // skip + 1 for size, k, skip, pad, step in sizes]
    return x.shape[0] * weight.shape[0] * math.prod(extents)


def conv3d(x: torch.Tensor, weight: torch.Tensor, stride, padding, dilation, groups: int) -> torch.Tensor:
    """Convolution without bias; tensors too large for one library call are cut along their channels (groups = 1)."""
    in_channels, out_channels = x.shape[1], weight.shape[0]
    in_parts = math.ceil(x.numel() / MAX_ELEMENTS)
    out_parts = math.ceil(output_elements(x, weight, stride, padding, dilation) / MAX_ELEMENTS)
    in_chunks = math.ceil(in_channels / (in_channels // in_parts))
    out_chunks = math.ceil(out_channels / (out_channels // out_parts))
    if in_chunks == 1 and out_chunks == 1:
        return F.conv3d(x, weight, None, stride, padding, dilation, groups)

    wide = torch.promote_types(x.dtype, torch.float32)
    outputs = []
    for rows in weight.chunk(out_chunks, dim=0):
        pairs = zip(x.chunk(in_chunks, dim=1), rows.chunk(in_chunks, dim=1), strict=True)
        partial = [F.conv3d(part, w, None, stride, padding, dilation, groups).to(wide) for part, w in pairs]
        outputs.append(torch.stack(partial).sum(dim=0).to(x.dtype))
    return torch.cat(outputs, dim=1)


def solution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | tuple[int, int, int],
    padding: int | tuple[int, int, int],
    dilation: int | tuple[int, int, int],
    groups: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the convolution over the channels of all ranks, plus bias.

    input: (B, ci, T, H, W), own channels. weight: (Co, ci, kT, kH, kW). bias: (Co,) or None. stride, padding, dilation: one
    int for all three axes or one per axis. Partial sums and their reduction are in the dtype of the input.
    Returns (B, Co, T', H', W'), the same on all ranks.
    """
    out = conv3d(input, weight, stride, padding, dilation, groups)
    dist.all_reduce(out, group=group)
    if bias is not None:
        out = out + bias[:, None, None, None]
    return out
