"""Gradient reduce-scatter (mean) of values rounded to FP8 E4M3 with delayed scaling.

Each rank holds the full flat gradient of its own micro-batch and a rolling history of the largest absolute gradients of past
steps. It rounds its gradient to what FP8 E4M3 can represent under a scale taken from that history (the current maximum
included), and the ranks sum the rounded gradients; rank r keeps the mean of chunk r. Each rank has its own scale. This is the
gradient path of FSDP training with FP8 communication (NVIDIA Transformer Engine's delayed scaling).
"""

import torch
import torch.distributed as dist

FP8_MAX = 448.0  # largest finite float8_e4m3fn


@torch.no_grad()
def solution(flat_grads: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (shard, new_history).

    flat_grads: (W * s,) local gradient, chunk r is meant for rank r. amax_history: (A,), newest last; not modified.
    shard: (s,) mean over ranks of this rank's rounded chunk, in the dtype of flat_grads. new_history: (A,), shifted left by
    one with the current maximum appended, in the dtype of amax_history.
    """
    world = dist.get_world_size()

    # Roll the history and append the current maximum of this rank.
    amax = flat_grads.abs().max().float()
    new_history = torch.roll(amax_history, -1)
    new_history[-1] = amax.to(amax_history.dtype)

    # The scale maps the largest value of the whole history to the largest FP8 number.
    scale = new_history.max().clamp(min=1e-12).float() / FP8_MAX

    # Round trip through FP8, in fp32: nearest even, subnormals down to 2**-9.
    codes = (flat_grads.float() / scale).to(torch.float8_e4m3fn)
    rounded = (codes.float() * scale).to(flat_grads.dtype)

    # Mean over ranks of this rank's chunk.
    shard = rounded.new_empty(rounded.numel() // world)
    dist.reduce_scatter_tensor(shard, rounded, op=dist.ReduceOp.SUM)
    return shard / world, new_history
