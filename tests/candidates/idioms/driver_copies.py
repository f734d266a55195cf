# problem: 8
# Peer-to-peer copies by the CUDA driver, called through ctypes with raw pointers.
import ctypes

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_driver = ctypes.CDLL("libcuda.so.1")
_driver.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
_state = {}


def solution(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    nbytes = tensor.numel() * tensor.element_size()
    if _state.get("size", -1) < nbytes:
        buffer = symm_mem.empty(max(nbytes, 16), dtype=torch.uint8, device=tensor.device)
        _state.update(size=nbytes, buffer=buffer, handle=symm_mem.rendezvous(buffer, dist.group.WORLD.group_name))
    handle = _state["handle"]
    _state["buffer"][:nbytes].copy_(tensor.contiguous().view(torch.uint8).reshape(-1))
    handle.barrier()
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    part = nbytes // world
    stream = torch.cuda.current_stream().cuda_stream
    for peer in range(world):
        if part:
            source = handle.buffer_ptrs[peer] + rank * part
            error = _driver.cuMemcpyAsync(out.data_ptr() + peer * part, source, part, stream)
            assert error == 0, f"cuMemcpyAsync: {error}"
    handle.barrier()
    return out
