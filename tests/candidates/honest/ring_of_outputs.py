# problem: 1
# timing: yes
# include: allreduce
# Outputs are ten buffers in turn: a caller may keep a few, and each is written again later.
_rings = {}
_turn = 0


def solution(tensor):
    global _turn
    _turn += 1
    ring = _rings.setdefault((tensor.shape, tensor.dtype), [torch.empty_like(tensor) for _ in range(10)])
    return ring[_turn % len(ring)].copy_(allreduce(tensor))
