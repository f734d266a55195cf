"""Rotary position embedding of local query and key chunks, then an all-gather along the sequence.

Every rank holds one chunk of the sequence: its queries, its keys, and the cosine and sine factors of its positions. It
rotates queries and keys (half-rotation convention of Llama in Hugging Face Transformers), then all ranks gather the
rotated tensors of the whole sequence, as sequence-parallel attention needs them.
"""

import torch
import torch.distributed as dist


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(x1, x2) -> (-x2, x1) for the two halves of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def gather_sequence(x: torch.Tensor) -> torch.Tensor:
    """All ranks' chunks (B, S, h, D), joined in rank order along the sequence: (B, world_size * S, h, D)."""
    x = x.contiguous()
    chunks = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(chunks, x)
    return torch.cat(chunks, dim=1)


def solution(
    q_local: torch.Tensor, k_local: torch.Tensor, cos_local: torch.Tensor, sin_local: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rotated (q, k) of the whole sequence, equal on all ranks.

    q_local: (B, S, h_q, D), k_local: (B, S, h_k, D), cos_local and sin_local: (B, S, D), one dtype. cos and sin cover the full
    width D; their two halves need not be equal. Each elementwise operation rounds to the input dtype.
    Returns (B, world_size * S, h_q, D) and (B, world_size * S, h_k, D).
    """
    cos = cos_local.unsqueeze(2)  # one for all heads
    sin = sin_local.unsqueeze(2)
    q = q_local * cos + rotate_half(q_local) * sin
    k = k_local * cos + rotate_half(k_local) * sin
    if not dist.is_initialized():
        return q, k
    return gather_sequence(q), gather_sequence(k)
