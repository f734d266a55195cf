"""Gradient all-reduce of the LoRA factors that all experts share.

The tail of the backward pass of an expert-parallel grouped GEMM with LoRA (VeOmni): the experts are spread over the ranks,
but the A factors of the gate and up projections and the B factor of the down projection are shared by all of them. Each
rank's grouped GEMM yields the gradient from its own experts only; the full gradient is the sum over the group.

Each rank holds its own local gradient of the three factors, contiguous and of the same shapes on all ranks. They are summed
in place, without averaging.
"""

import torch
import torch.distributed as dist


def solution(
    grad_fc1_1_lora_A: torch.Tensor,
    grad_fc1_2_lora_A: torch.Tensor,
    grad_fc2_lora_B: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum the three gradients over the group in place and return them (the same tensor objects).

    grad_fc1_1_lora_A, grad_fc1_2_lora_A: (rank of the factors, F_in), gate and up projection.
    grad_fc2_lora_B: (F_out, rank of the factors), down projection.
    """
    dist.all_reduce(grad_fc1_1_lora_A, op=dist.ReduceOp.SUM, group=group)
    dist.all_reduce(grad_fc1_2_lora_A, op=dist.ReduceOp.SUM, group=group)
    dist.all_reduce(grad_fc2_lora_B, op=dist.ReduceOp.SUM, group=group)
    return grad_fc1_1_lora_A, grad_fc1_2_lora_A, grad_fc2_lora_B
