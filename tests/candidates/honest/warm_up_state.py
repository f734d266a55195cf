# problem: 1
# timing: yes
# include: allreduce
# Tries two ways in its first calls and keeps the faster one, as an autotuner does.
import time

_times = {}


def _other(tensor):
    mine, handle = _buffer(tensor)
    n = tensor.numel()
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = torch.stack([handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size)]).sum(0, dtype=tensor.dtype)
    handle.barrier()
    return out.reshape(tensor.shape)


def solution(tensor):
    seen = sum(len(v) for v in _times.values())
    way = (allreduce, _other)[seen % 2] if seen < 8 else min(_times, key=lambda w: min(_times[w]))
    start = time.perf_counter()
    out = way(tensor)
    if seen < 8:
        _times.setdefault(way, []).append(time.perf_counter() - start)
    return out
