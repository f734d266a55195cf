"""All-gather of parameter shards rounded to FP8 E4M3 with delayed scaling.

Each rank holds one flat shard of the parameters and a rolling history of the largest absolute values that its shard had in
past steps. It rounds the shard to what FP8 E4M3 can represent under a scale taken from that history (the current maximum
included); every rank then collects all rounded shards. Each shard is rounded with its owner's scale. This is the parameter
path of FSDP training with FP8 communication (NVIDIA Transformer Engine's delayed scaling).
"""

import torch
import torch.distributed as dist

FP8_MAX = 448.0  # largest finite float8_e4m3fn


@torch.no_grad()
def solution(flat_param_shard: torch.Tensor, amax_history: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (full, new_history).

    flat_param_shard: (s,), the same s on all ranks. amax_history: (A,), newest last; not modified.
    full: (W * s,) the rounded shards of all ranks in rank order, in the dtype of flat_param_shard, equal on all ranks.
    new_history: (A,), shifted left by one with the current maximum appended, in the dtype of amax_history.
    """
    world = dist.get_world_size()

    # Roll the history and append the current maximum of this rank.
    amax = flat_param_shard.abs().max().float()
    new_history = torch.roll(amax_history, -1)
    new_history[-1] = amax.to(amax_history.dtype)

    # The scale maps the largest value of the whole history to the largest FP8 number.
    scale = new_history.max().clamp(min=1e-12).float() / FP8_MAX

    # Round trip through FP8, in fp32: nearest even, subnormals down to 2**-9. A true division: a reciprocal moves the scale.
    codes = (flat_param_shard.float() / scale).to(torch.float8_e4m3fn)
    rounded = (codes.float() * scale).to(flat_param_shard.dtype)

    # Collect all shards.
    full = rounded.new_empty(world * rounded.numel())
    dist.all_gather_into_tensor(full, rounded)
    return full, new_history
