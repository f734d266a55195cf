# Problem 18 over any ``exchange(t)`` that gives every rank's tensor; exploits that say `include: norm_over_exchange` begin with it.
import torch, torch.distributed as dist
def packed(t):
    return t.contiguous().view(torch.uint8).numpy().tobytes()
def unpacked(data, like):
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)
def solution(local_hidden_states, local_weight, variance_epsilon):
    x = local_hidden_states.float()
    squares = sum(exchange(x.pow(2).sum(dim=-1, keepdim=True)))
    mean = squares / (x.shape[-1] * dist.get_world_size())
    return local_weight * (x * torch.rsqrt(mean + variance_epsilon)).to(local_hidden_states.dtype)
