"""Reduce-scatter (mean) of partial activations, followed by RMSNorm on the received rows.

The boundary between a tensor-parallel and a sequence-parallel region in a Megatron-LM style transformer: each rank has a
partial result for every row of the sequence; each receives the finished rows of its own part and normalises them.

Each rank holds partial sums for the rows of all ranks, one chunk of R rows of H elements after the other, and the replicated
gain of the norm.
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(rs_input_1d: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """Return this rank's normalised rows, (R, H), in the dtype of the input.

    rs_input_1d: (W * R * H,), chunk r belongs to rank r. gamma: (H,). eps: added to the mean square.
    """
    world_size = dist.get_world_size()
    hidden = gamma.numel()
    chunk = rs_input_1d.numel() // world_size
    assert chunk % hidden == 0, f"a chunk of {chunk} elements does not consist of rows of {hidden}"

    received = rs_input_1d.new_empty(chunk)
    dist.reduce_scatter_tensor(received, rs_input_1d, op=dist.ReduceOp.SUM)
    received.div_(world_size)

    # RMSNorm in at least fp32, rounded once.
    precision = torch.promote_types(received.dtype, torch.float32)
    x = received.view(-1, hidden).to(precision)
    inverse_rms = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return (x * inverse_rms * gamma.to(precision)).to(rs_input_1d.dtype)
