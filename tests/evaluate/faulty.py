"""Candidates with exactly one known fault each, for problems whose right answer is short."""

PRELUDE = '''
import torch
import torch.distributed as dist
from pkb import symm


class Shared:
    """Each rank's tensor, visible to all, between two barriers; two halves in turn, so that one call cannot overtake another."""

    def __init__(self):
        self.memory = symm.empty(2 << 20, dtype=torch.uint8)
        self.handle = symm.rendezvous(self.memory, dist.group.WORLD)
        self.rank, self.world_size = self.handle.rank, self.handle.world_size
        self.calls = 0

    def share(self, tensor):
        self.calls += 1
        self.view(self.rank, tensor).copy_(tensor)
        self.handle.barrier()
        return [self.view(r, tensor).clone() for r in range(self.world_size)]

    def view(self, rank, like, back=0):
        half = (self.calls - back) % 2
        return self.handle.get_buffer(rank, like.shape, like.dtype, half * (1 << 20) // like.element_size())


shared = None


def everyone(tensor):
    global shared
    shared = shared or Shared()
    return shared.share(tensor)


def total(tensor):
    return torch.stack([x.float() for x in everyone(tensor)]).sum(0)
'''


def candidate(body, parameters="tensor"):
    """A whole candidate from the lines of ``solution``, whose parameter is a tensor in problems 1, 2, 7 and 8."""
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return f"{PRELUDE}\n\ndef solution({parameters}):\n{lines}\n"
