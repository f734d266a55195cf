"""torch.distributed for ranks that share a GPU: CUDA tensors travel through host memory over gloo.

NCCL refuses two ranks on one device and gloo has neither all-to-all nor point-to-point for CUDA tensors, so on shared devices every
function that moves tensors is wrapped: inputs are copied to the host, the operation runs there, outputs are copied back. Right, not
fast: times of shared devices never count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

#: What each function writes: names of its parameters, by position where given so.
OUTPUTS: dict[str, tuple[int, str]] = {
    "all_reduce": (0, "tensor"),
    "broadcast": (0, "tensor"),
    "reduce": (0, "tensor"),
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "reduce_scatter": (0, "output"),
    "reduce_scatter_tensor": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_to_all_single": (0, "output"),
    "gather": (1, "gather_list"),
    "scatter": (0, "tensor"),
    "send": (-1, ""),
    "isend": (-1, ""),
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
}


class StagedWork:
    """A pending operation whose results are copied to the device when it has been waited for."""

    def __init__(self, work: Any, finish: Callable[[], None]) -> None:
        self._work, self._finish, self._done = work, finish, False

    def wait(self, *args: Any) -> bool:
        """Wait for the operation; the outputs are then on the device."""
        self._work.wait(*args)
        if not self._done:
            self._done = True
            self._finish()
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def install() -> None:
    """Wrap the functions of torch.distributed in this process."""
    for name, (position, keyword) in OUTPUTS.items():
        staged = _staged(getattr(c10d, name), position, keyword)
        setattr(c10d, name, staged)
        setattr(dist, name, staged)


def _host(x: Any, hosts: dict[int, torch.Tensor]) -> Any:
    """The same with CUDA tensors on the host, noted in ``hosts`` by identity.

    No closure of ``call``: one that calls itself would keep every copy until the garbage collector comes by, gigabytes later.
    """
    if isinstance(x, torch.Tensor) and x.is_cuda:
        if id(x) not in hosts:
            hosts[id(x)] = x.detach().cpu().contiguous()
        return hosts[id(x)]
    if isinstance(x, list | tuple) and any(isinstance(i, torch.Tensor) for i in x):
        return [_host(i, hosts) for i in x]
    return x


def _staged(original: Callable[..., Any], position: int, keyword: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        hosts: dict[int, torch.Tensor] = {}
        moved = [_host(a, hosts) for a in args]
        moved_named = {k: _host(v, hosts) for k, v in kwargs.items()}
        target = args[position] if 0 <= position < len(args) else kwargs.get(keyword)

        def finish() -> None:
            for tensor in target if isinstance(target, list | tuple) else [target]:
                if isinstance(tensor, torch.Tensor) and id(tensor) in hosts:
                    tensor.detach().copy_(hosts[id(tensor)].view(tensor.shape))

        work = original(*moved, **moved_named)
        if work is None or not hasattr(work, "wait"):
            finish()
            return work
        return StagedWork(work, finish)

    return call
