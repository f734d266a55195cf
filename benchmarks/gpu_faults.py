"""Candidates that break on purpose, for problem 1, with the verdict that each must get. All are right until they break."""

from __future__ import annotations

from dataclasses import dataclass

from pkb.verdict import Verdict


@dataclass(frozen=True)
class Fault:
    """source: the candidate. verdicts: what it may be judged. gpu: it needs CUDA ranks."""

    source: str
    verdicts: tuple[Verdict, ...]
    gpu: bool = False


_RUNTIME = (Verdict.RUNTIME_ERROR,)

_HEAD = """
import ctypes, os
import torch, torch.distributed as dist
def solution(tensor):
"""

_ILLEGAL = """
import torch, torch.distributed as dist
import triton
import triton.language as tl

@triton.jit
def store(address):
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)

def solution(tensor):
    store[(1,)](1 << 46)
    return tensor.clone()
"""

_HANG_IN_A_KERNEL = """
import torch, torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
_state = {}
def solution(tensor):
    if not _state:
        buffer = symm_mem.empty(256, dtype=torch.float32, device=tensor.device)
        _state["kept"] = buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
    if dist.get_rank() == 0:
        _state["kept"][1].barrier(channel=3)
    return tensor.clone()
"""

#: name -> fault; the order is the order in which they are tried
FAULTS: dict[str, Fault] = {
    "segfault in one rank": Fault(
        _HEAD + "    if dist.get_rank() == 1: ctypes.string_at(0)\n    return tensor.clone()\n", _RUNTIME
    ),
    "illegal address": Fault(_ILLEGAL, _RUNTIME, gpu=True),
    "hang in one rank": Fault(
        _HEAD + "    while dist.get_rank() == 1: pass\n    dist.barrier()\n    return tensor.clone()\n", (Verdict.DEADLOCK,)
    ),
    "hang in a kernel": Fault(_HANG_IN_A_KERNEL, (Verdict.DEADLOCK,), gpu=True),
    "out of device memory": Fault(
        _HEAD + "    kept = []\n    while True: kept.append(torch.empty(4 << 30, dtype=torch.uint8, device=tensor.device))\n",
        (Verdict.OUT_OF_MEMORY,),
        gpu=True,
    ),
    "early exit": Fault(_HEAD + "    if dist.get_rank() == 1: os._exit(0)\n    return tensor.clone()\n", _RUNTIME),
    "raise in one rank": Fault(
        _HEAD + "    if dist.get_rank() == 1: raise ValueError('on purpose')\n    return tensor.clone()\n", _RUNTIME
    ),
}
