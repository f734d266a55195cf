# problem: 2
# Copies from peers on streams of their own, joined by events; the barrier is on the current stream.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


class Gather:
    def __init__(self):
        self.buffers = {}
        self.streams = None

    def __call__(self, tensor):
        rank, world = dist.get_rank(), dist.get_world_size()
        if self.streams is None:
            self.streams = [torch.cuda.Stream() for _ in range(world)]
        key = (tuple(tensor.shape), tensor.dtype)
        if key not in self.buffers:
            buffer = symm_mem.empty(max(1, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
            self.buffers[key] = buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
        buffer, handle = self.buffers[key]
        buffer[: tensor.numel()].copy_(tensor.reshape(-1))
        handle.barrier(channel=0)
        out = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        ready = torch.cuda.Event()
        ready.record()
        for step in range(world):
            peer = (rank + step) % world
            stream = self.streams[peer]
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                source = handle.get_buffer(peer, (tensor.numel(),), tensor.dtype)
                out[peer].view(-1).copy_(source, non_blocking=True)
                done = torch.cuda.Event()
                done.record(stream)
            torch.cuda.current_stream().wait_event(done)
        handle.barrier(channel=0)
        return out


_gather = Gather()


def solution(tensor):
    return _gather(tensor)
