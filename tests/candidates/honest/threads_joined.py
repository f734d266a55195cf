# problem: 1
# timing: yes
# include: allreduce
# Work on a pool of threads, joined before the call returns.
from concurrent.futures import ThreadPoolExecutor

_pool = ThreadPoolExecutor(2)


def solution(tensor):
    mine, handle = _buffer(tensor)
    n = tensor.numel()
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    parts = [handle.get_buffer(r, (n,), tensor.dtype) for r in range(handle.world_size)]
    out = torch.empty(n, dtype=tensor.dtype)
    half = n // 2
    for job in [_pool.submit(lambda a, b: out[a:b].copy_(sum(p[a:b] for p in parts)), a, b) for a, b in ((0, half), (half, n))]:
        job.result()
    handle.barrier()
    return out.reshape(tensor.shape)
