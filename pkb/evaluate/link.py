"""What connects the GPUs of this machine, measured: peer access, multicast, and the bandwidth of copies through symmetric memory.

The ranks are processes of ours that meet over gloo, so that nothing here depends on NCCL. A copy is one of torch's own from or to a
peer's buffer, of 256 MiB, the best of several; one direction at a time, all ranks at once, each with its next neighbour.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pkb.errors import HarnessError

COPY_BYTES = 256 << 20
ROUNDS = 8


@dataclass(frozen=True)
class Link:
    """p2p: every device can address every other. multicast: symmetric memory has a multicast address (NVLS).

    read_bytes_per_s, write_bytes_per_s: of the slowest rank, one direction. shared_device: ranks share a GPU, so the bandwidth is
    that of its own memory.
    """

    ranks: int
    p2p: bool
    multicast: bool
    read_bytes_per_s: float
    write_bytes_per_s: float
    shared_device: bool


def measure(devices: Sequence[int], deadline_s: float = 120.0) -> Link:
    """Measure with one rank per entry of ``devices`` (CUDA indices, at least two entries; repeated ones share a GPU).

    Raises HarnessError if the ranks do not meet or a copy fails.
    """
    import torch

    shared = len(set(devices)) < len(devices)
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    arguments = [(rank, list(devices), store.port, shared, answers) for rank in range(len(devices))]
    ranks = [context.Process(target=_rank, args=a, daemon=True) for a in arguments]
    for process in ranks:
        process.start()
    found: list[dict[str, Any]] = []
    try:
        while len(found) < len(ranks):
            found.append(answers.get(timeout=deadline_s))
            if "failed" in found[-1]:
                raise HarnessError(f"the link between GPUs could not be measured: {found[-1]['failed']}")
    except queue.Empty:
        raise HarnessError(f"the link between GPUs could not be measured within {deadline_s:g} s") from None
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return Link(
        ranks=len(ranks),
        p2p=all(f["p2p"] for f in found),
        multicast=all(f["multicast"] for f in found),
        read_bytes_per_s=min(f["read"] for f in found),
        write_bytes_per_s=min(f["write"] for f in found),
        shared_device=shared,
    )


def _rank(rank: int, devices: list[int], port: int, shared: bool, answers: Any) -> None:
    if shared:
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    try:
        answers.put(_copies(rank, devices, port))
    except Exception as error:  # whatever it was, the parent says it
        answers.put({"failed": f"rank {rank}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})


def _copies(rank: int, devices: list[int], port: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric_memory

    torch.cuda.set_device(devices[rank])
    device = torch.device("cuda", devices[rank])
    store = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(devices))
    buffer = symmetric_memory.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    handle: Any = symmetric_memory.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]
    peer = handle.get_buffer((rank + 1) % len(devices), (COPY_BYTES,), torch.uint8)
    local = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    return {
        "read": _best(local, peer),
        "write": _best(peer, local),
        "multicast": bool(handle.multicast_ptr),
        "p2p": all(torch.cuda.can_device_access_peer(devices[rank], d) for d in devices if d != devices[rank]),
    }


def _best(to: Any, source: Any) -> float:
    """Bytes per second of the fastest of ROUNDS copies, all ranks starting together."""
    import torch
    import torch.distributed as dist

    best = 0.0
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        to.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = max(best, COPY_BYTES / (start.elapsed_time(end) / 1e3))
    dist.barrier()
    return best
