"""Context-parallel Hyena operator: gate, long convolution, gate.

Hyena layers (Evo 2, Savanna) replace attention by y = x1 * conv(x2 * v), where the filter is as long as the sequence.
The sequence is sharded over the ranks, but a long convolution needs all positions of a channel, so channels are
exchanged for positions before it and back after it. Each rank holds its part of x1, x2 and v for all D channels,
the filters of all groups and the skip term of all channels. With zigzag splitting the part of rank r is the pair of
chunks r and 2W - 1 - r of 2W chunks, otherwise it is the r-th contiguous block.
"""

import torch
import torch.distributed as dist


def zigzag_order(world_size: int) -> list[int]:
    """Global chunk numbers in the order in which they arrive from ranks 0, 1, ...: 0, 2W-1, 1, 2W-2, ...."""
    return [chunk for rank in range(world_size) for chunk in (rank, 2 * world_size - 1 - rank)]


def permute_chunks(x: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Cut the last dimension into len(order) chunks and put chunk order[i] in place i."""
    chunks = x.chunk(len(order), dim=-1)
    return torch.cat([chunks[i] for i in order], dim=-1)


def sequence_to_channels(x: torch.Tensor, zigzag: bool, group) -> torch.Tensor:
    """(B, D, l) local positions of all channels -> (B, D/W, W*l) all positions, in natural order, of own channels."""
    world_size = dist.get_world_size(group)
    send = torch.stack(x.chunk(world_size, dim=1))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    full = torch.cat(list(received), dim=-1)
    if zigzag:
        order = zigzag_order(world_size)
        full = permute_chunks(full, [order.index(i) for i in range(2 * world_size)])
    return full


def channels_to_sequence(x: torch.Tensor, zigzag: bool, group) -> torch.Tensor:
    """The inverse: (B, D/W, W*l) -> (B, D, l)."""
    world_size = dist.get_world_size(group)
    if zigzag:
        x = permute_chunks(x, zigzag_order(world_size))
    send = torch.stack(x.chunk(world_size, dim=-1))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(list(received), dim=1)


def fft_convolution(z: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y[t] = sum over s <= t of filters[t - s] * z[s], plus bias * z[t], by FFTs in (at least) float32.

    z: (B, C, L). filters: (C, F). bias: (C,). The FFT length 2L makes the convolution causal for F <= L + 1.
    """
    length = z.shape[-1]
    wide = torch.promote_types(z.dtype, torch.float32)
    signal = z.to(wide)
    spectrum = torch.fft.rfft(signal, n=2 * length) * torch.fft.rfft(filters.to(wide), n=2 * length)
    y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
    y = y + signal * bias.to(wide)[:, None]
    return y.to(z.dtype)


def solution(
    x1_seq: torch.Tensor,
    x2_seq: torch.Tensor,
    v_seq: torch.Tensor,
    h: torch.Tensor,
    conv_bias: torch.Tensor,
    num_groups: int,
    group_dim: int,
    group: dist.ProcessGroup | None = None,
    with_zigzag_splitting: bool = True,
) -> torch.Tensor:
    """Return x1 * (conv(x2 * v, h) + conv_bias * x2 * v) for the local positions.

    x1_seq, x2_seq, v_seq: (B, D, l), D = num_groups * group_dim. h: (num_groups, F), one filter for group_dim consecutive
    channels. conv_bias: (D,). Products, the convolution and the gate are each rounded to the input dtype.
    Returns (B, l, D), contiguous, positions in the order of the inputs.
    """
    world_size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    x1 = sequence_to_channels(x1_seq, with_zigzag_splitting, group)
    x2 = sequence_to_channels(x2_seq, with_zigzag_splitting, group)
    v = sequence_to_channels(v_seq, with_zigzag_splitting, group)

    own_groups = num_groups // world_size
    own_channels = own_groups * group_dim
    filters = h[rank * own_groups : (rank + 1) * own_groups].repeat_interleave(group_dim, dim=0)
    bias = conv_bias[rank * own_channels : (rank + 1) * own_channels]

    y = x1 * fft_convolution(x2 * v, filters, bias)
    return channels_to_sequence(y, with_zigzag_splitting, group).transpose(1, 2).contiguous()
