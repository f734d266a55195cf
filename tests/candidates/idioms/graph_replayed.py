# problem: 1
# The exchange is captured once for each shape as a CUDA graph over static buffers and replayed.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_graphs = {}


def _capture(tensor):
    world = dist.get_world_size()
    buffer = symm_mem.empty(max(1, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
    handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
    peers = [handle.get_buffer(r, (tensor.numel(),), tensor.dtype) for r in range(world)]
    total = torch.zeros(tensor.numel(), dtype=torch.float32, device=tensor.device)

    def exchange():
        handle.barrier(channel=0)
        torch.add(peers[0], peers[1], out=total) if tensor.dtype == torch.float32 and world == 2 else _sum(peers, total)
        handle.barrier(channel=1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        exchange()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exchange()
    return graph, buffer, total


def _sum(peers, total):
    total.zero_()
    for peer in peers:
        total.add_(peer)


def solution(tensor):
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _graphs:
        _graphs[key] = _capture(tensor)
    graph, buffer, total = _graphs[key]
    buffer[: tensor.numel()].copy_(tensor.reshape(-1))
    graph.replay()
    return total.to(tensor.dtype, copy=True).view(tensor.shape)
