# problem: 1
# timing: yes
# include: allreduce
# The same output buffer is returned by every call.
_out = {}


def solution(tensor):
    out = _out.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))
    return out.copy_(allreduce(tensor))
