"""Sum all-reduce in Triton: peer addresses travel as an int64 tensor and become pointers inside the kernel."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def _sum_peers(peers_ptr, out_ptr, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for rank in tl.static_range(WORLD):
        peer = tl.load(peers_ptr + rank).to(tl.pointer_type(out_ptr.dtype.element_ty))
        total += tl.load(peer + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask=inside)


_workspaces = {}


def _workspace(n, dtype, device):
    """Symmetric staging memory for n elements; grows with the largest tensor seen, on all ranks in the same call."""
    found = _workspaces.get(dtype)
    if found is None or found[0].numel() < n:
        buffer = symm_mem.empty(max(1 << 16, 1 << (n - 1).bit_length()), dtype=dtype, device=device)
        handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
        found = _workspaces[dtype] = (buffer, handle, torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device))
    return found


def solution(tensor: torch.Tensor) -> torch.Tensor:
    n = tensor.numel()
    buffer, handle, peers = _workspace(max(n, 1), tensor.dtype, tensor.device)
    buffer[:n].copy_(tensor.reshape(-1))
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    handle.barrier(channel=0)
    if n:
        block = 1024
        _sum_peers[(triton.cdiv(n, block),)](peers, out, n, WORLD=dist.get_world_size(), BLOCK=block)
    handle.barrier(channel=1)
    return out
