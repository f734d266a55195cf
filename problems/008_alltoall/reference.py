"""Equal-split all-to-all along dimension 0.

Slice d of rank r's tensor is addressed to rank d and lands there in slice r: a transpose of the (source, destination)
grid of slices, bit for bit. Expert-parallel dispatch and the sequence-to-head switch of Ulysses attention are built on it.
"""

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor like ``tensor``, (world_size, M, N), whose slice s is slice r of rank s's tensor, r the rank."""
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor.contiguous())
    return received
