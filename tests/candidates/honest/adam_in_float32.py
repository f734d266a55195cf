# problem: 43
# dtype: float32
# Adam as kernels in C++ and CUDA write it: hyperparameters are floats, so 1 - beta is computed in float32; the bias corrections come
# from the host in double precision.
import numpy as np
import torch
import torch.distributed as dist
from pkb import symm

_rooms = {}


def solution(grad_shard, master_shard, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step):
    one = np.float32(1)
    correction1, correction2 = np.float32(1 - beta1**step), np.float32(1 - beta2**step)
    lr, beta1, beta2, eps = map(np.float32, (lr, beta1, beta2, eps))
    g, w = grad_shard.numpy(), master_shard.numpy()
    m = beta1 * exp_avg.numpy() + (one - beta1) * g
    v = beta2 * exp_avg_sq.numpy() + (one - beta2) * g * g
    w = w - lr * (m / correction1) / (np.sqrt(v / correction2) + eps)
    p, key = w.size, w.size
    if key not in _rooms:
        t = symm.empty(p, dtype=master_shard.dtype, device="cpu")
        _rooms[key] = t, symm.rendezvous(t, dist.group.WORLD)
    mine, handle = _rooms[key]
    mine.copy_(torch.from_numpy(w))
    handle.barrier()
    out = torch.cat([handle.get_buffer(r, (p,), master_shard.dtype) for r in range(handle.world_size)])
    handle.barrier()
    return out
