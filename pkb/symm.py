"""Symmetric memory for CPU ranks: the API of ``torch.distributed._symmetric_memory`` over POSIX shared memory.

A buffer from ``empty`` is an anonymous shared-memory file (memfd) mapped into this process; ``rendezvous`` maps the
peers' buffers beside it. Because the files have no name, they vanish with the last process that maps them, however it
ends. Descriptors travel over abstract Unix sockets whose names and secrets the ranks exchange through the group's store,
so ranks may run under different users and with different home directories; they must share a network namespace.

Every counter behind ``barrier``, ``put_signal`` and ``wait_signal`` has exactly one writer and only grows, so aligned
64-bit loads and stores suffice and no atomic read-modify-write is needed: on x86-64 the memory model (total store order)
keeps data written before a counter visible before it; elsewhere libatomic's fence does.

If the environment variable PKB_SYMM_DELAY_US is set when this module is imported, every rank sleeps a random time of up
to that many microseconds on entry to and exit from each of the three, which exposes missing synchronisation at once.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import platform
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from random import SystemRandom
from typing import Any

import torch
import torch.distributed as dist

__all__ = [
    "NUM_CHANNELS",
    "SymmetricMemory",
    "empty",
    "enable_symm_mem_for_group",
    "get_signal_pad_size",
    "is_symm_mem_enabled_for_group",
    "rendezvous",
]

#: Independent channels of barrier and signals: 0 .. NUM_CHANNELS - 1.
NUM_CHANNELS = 64

_SIGNAL_PAD_BYTES = 16384
_WORDS = 8  # 64-bit words between counters: each has a cache line of its own
_SPINS = 400  # about 30 us of busy waiting, then yield, then sleep: ranks may outnumber cores
_YIELDS = 200
_LONGEST_SLEEP = 100e-6
_CONNECT_SECONDS = 60.0
_STORE_SET = dist.Store.set  # as it is before a harness counts what candidates store


class _Segment(mmap.mmap):
    """One shared-memory file mapped into this process; tensors over it keep it alive, its death unmaps it."""

    nbytes: int
    fd: int
    links: dict[Any, tuple[list[Any], list[_Segment]]]  # by group: the peers' buffers and all control segments
    handles: weakref.WeakValueDictionary[Any, SymmetricMemory]  # weak: no cycle, so memory goes with its last user

    @classmethod
    def create(cls, nbytes: int) -> _Segment:
        """A new zero-filled file of ``nbytes``, whose descriptor stays open for later rendezvous."""
        fd = os.memfd_create("pkb-symm", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(nbytes, 1))
        segment = cls.attach(fd, nbytes)
        weakref.finalize(segment, os.close, fd)
        return segment

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> _Segment:
        """The file behind ``fd``, which the caller may close afterwards."""
        segment = cls(fd, max(nbytes, 1))
        segment.nbytes, segment.fd = nbytes, fd
        segment.links, segment.handles = {}, weakref.WeakValueDictionary()
        return segment

    @property
    def address(self) -> int:
        return torch.frombuffer(self, dtype=torch.uint8).data_ptr()

    def tensor(self, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """A contiguous tensor over this memory, ``storage_offset`` elements from its start; ValueError beyond its end."""
        start = storage_offset * dtype.itemsize
        end = start + math.prod(sizes) * dtype.itemsize
        if min(sizes, default=0) < 0 or start < 0 or end > self.nbytes:
            raise ValueError(
                f"{tuple(sizes)} of {dtype} at element {storage_offset} ends at byte {end}, the buffer has {self.nbytes}"
            )
        return torch.frombuffer(self, dtype=torch.uint8)[start:end].view(dtype).view(tuple(sizes))


_own: weakref.WeakValueDictionary[int, _Segment] = weakref.WeakValueDictionary()  # by address
_rounds: dict[tuple[str, tuple[int, ...]], int] = {}  # rendezvous so far, by group


def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """An uninitialised contiguous tensor in memory that ``rendezvous`` can share.

    size: dimensions, as separate arguments or as one sequence. dtype: torch's default unless given. Raises ValueError for
    a device other than the CPU; on GPUs torch's own module does this.
    """
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = tuple(size[0])
    dtype = dtype or torch.get_default_dtype()
    device = torch.device(device) if device is not None else torch.get_default_device()
    if device.type != "cpu":
        raise ValueError(f"pkb.symm.empty: device {device}; use torch.distributed._symmetric_memory for GPUs")
    segment = _Segment.create(math.prod(size) * dtype.itemsize)
    _own[segment.address] = segment
    return segment.tensor(size, dtype)


def rendezvous(tensor: torch.Tensor, group: dist.ProcessGroup | str | None = None) -> SymmetricMemory:
    """Map the buffers of all ranks of ``group`` (a process group, its name, or None for the world). Collective.

    ``tensor`` comes from ``empty`` or is a view of such a tensor; the handle covers the whole allocation, and calling again
    with the same allocation and group returns the same handle without communicating. Raises ValueError if the tensor is no
    such tensor or the ranks' allocations differ in size, TypeError for something that is no group of this rank.
    """
    process_group = _resolve(group)
    segment = _own.get(tensor.untyped_storage().data_ptr())
    if segment is None:
        raise ValueError("rendezvous: allocate the tensor with pkb.symm.empty")
    key = (process_group.group_name, tuple(dist.get_process_group_ranks(process_group)))
    if key not in segment.links:
        _rounds[key] = _rounds.get(key, 0) + 1
        prefix = f"pkb-symm/{'_'.join(map(str, key[1]))}/{_rounds[key]}"
        segment.links[key] = _connect(segment, process_group, prefix)
    handle = segment.handles.get(key)
    if handle is None:
        handle = segment.handles[key] = SymmetricMemory(process_group.rank(), segment, *segment.links[key])
    return handle


def enable_symm_mem_for_group(group_name: str) -> None:
    """Does nothing; here because programs for older versions of torch call it."""


def is_symm_mem_enabled_for_group(group_name: str) -> bool:
    """True: every group can rendezvous."""
    return True


def get_signal_pad_size() -> int:
    """Bytes of each rank's signal pad."""
    return _SIGNAL_PAD_BYTES


class SymmetricMemory:
    """One buffer per rank of a group, all mapped here. Ranks are numbered within the group.

    rank, world_size: of this process in the group. buffer_size: bytes of each buffer. buffer_ptrs, signal_pad_ptrs: addresses
    in this process, by rank. The signal pad is zero at first and left to the caller: ``barrier`` and the signals keep their
    counters elsewhere. multicast_ptr is 0: CPUs have no multicast.
    """

    multicast_ptr = 0
    signal_pad_size = _SIGNAL_PAD_BYTES

    def __init__(self, rank: int, own: _Segment, peers: list[Any], controls: list[_Segment]) -> None:
        buffers = [own if r == rank else peer for r, peer in enumerate(peers)]
        self.rank = rank
        self.world_size = len(buffers)
        self.device = torch.device("cpu")
        self.buffer_size = own.nbytes
        self.buffer_ptrs = [b.address for b in buffers]
        self.signal_pad_ptrs = [c.address for c in controls]
        self._buffers, self._controls = buffers, controls
        self._counters = [memoryview(c)[_SIGNAL_PAD_BYTES:].cast("Q") for c in controls]

    @staticmethod
    def has_multicast_support(device_type: Any = None, device_idx: int = 0) -> bool:
        """False, as ``multicast_ptr`` says."""
        return False

    @cached_property
    def buffer_ptrs_dev(self) -> int:
        """Address of an array of the ``buffer_ptrs``, valid while this handle lives."""
        self._buffer_array = (ctypes.c_uint64 * self.world_size)(*self.buffer_ptrs)
        return ctypes.addressof(self._buffer_array)

    @cached_property
    def signal_pad_ptrs_dev(self) -> int:
        """Address of an array of the ``signal_pad_ptrs``, valid while this handle lives."""
        self._pad_array = (ctypes.c_uint64 * self.world_size)(*self.signal_pad_ptrs)
        return ctypes.addressof(self._pad_array)

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """A tensor over ``rank``'s buffer; ``storage_offset`` counts elements. It keeps that memory mapped by itself.

        Raises ValueError if it would reach beyond the buffer.
        """
        return self._buffers[rank].tensor(sizes, dtype, storage_offset)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """``get_buffer`` from the start of the buffer."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """A tensor over ``rank``'s signal pad; by default uint32 and all that lies beyond the offset."""
        dtype = dtype or torch.uint32
        sizes = sizes or (_SIGNAL_PAD_BYTES // dtype.itemsize - storage_offset,)
        if (storage_offset + math.prod(sizes)) * dtype.itemsize > _SIGNAL_PAD_BYTES:
            raise ValueError(f"{tuple(sizes)} of {dtype} at element {storage_offset} exceeds the {_SIGNAL_PAD_BYTES}-byte pad")
        return self._controls[rank].tensor(sizes, dtype, storage_offset)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Return when every rank has called ``barrier`` on this channel as often; what they wrote before is then visible.

        Raises TimeoutError after ``timeout_ms`` milliseconds (0: never); this rank then counts as arrived.
        """
        index = self._index(0, channel)
        _stagger()
        mine = self._counters[self.rank]
        goal = mine[index] + 1
        _fence()
        mine[index] = goal
        deadline = _deadline(timeout_ms)
        absent = [r for r, c in enumerate(self._counters) if not _reaches(c, index, goal, deadline)]
        if absent:
            raise TimeoutError(f"barrier on channel {channel}: ranks {absent} did not arrive within {timeout_ms} ms")
        _fence()
        _stagger()

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Release one ``wait_signal`` of ``dst_rank``, first waiting until it has taken the previous signal of this channel.

        Raises TimeoutError if it has not within ``timeout_ms`` milliseconds (0: never); nothing is then signalled.
        """
        mine, index = self._counters[self.rank], self._index(1 + dst_rank, channel)
        taken = self._index(1 + self.world_size + self.rank, channel)
        _stagger()
        sent = mine[index]
        if not _reaches(self._counters[dst_rank], taken, sent, _deadline(timeout_ms)):
            raise TimeoutError(f"put_signal on channel {channel}: rank {dst_rank} took no signal within {timeout_ms} ms")
        _fence()
        mine[index] = sent + 1
        _stagger()

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Take one signal of ``src_rank``; what it wrote before its ``put_signal`` is then visible.

        Raises TimeoutError if none comes within ``timeout_ms`` milliseconds (0: never).
        """
        mine, index = self._counters[self.rank], self._index(1 + self.world_size + src_rank, channel)
        sent = self._index(1 + self.rank, channel)
        _stagger()
        goal = mine[index] + 1
        if not _reaches(self._counters[src_rank], sent, goal, _deadline(timeout_ms)):
            raise TimeoutError(f"wait_signal on channel {channel}: no signal of rank {src_rank} within {timeout_ms} ms")
        _fence()
        mine[index] = goal
        _stagger()

    def _index(self, row: int, channel: int) -> int:
        """Where a rank's counter lies. Row 0: barriers; 1 + r: signals sent to r; 1 + world_size + r: taken from r."""
        if not 0 <= channel < NUM_CHANNELS:
            raise ValueError(f"channel {channel}: there are {NUM_CHANNELS}, from 0")
        return (row * NUM_CHANNELS + channel) * _WORDS


def _resolve(group: Any) -> dist.ProcessGroup:
    if group is None:
        group = dist.group.WORLD
    elif isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"rendezvous: {group!r} is no process group that this rank belongs to")
    return group


def _connect(segment: _Segment, group: dist.ProcessGroup, prefix: str) -> tuple[list[Any], list[_Segment]]:
    """Every rank's buffer (None for this rank's own) and control segment, by rank."""
    rank, world_size = group.rank(), group.size()
    control_bytes = _SIGNAL_PAD_BYTES + (1 + 2 * world_size) * NUM_CHANNELS * _WORDS * 8
    control = _Segment.create(control_bytes)
    store = dist.distributed_c10d._get_process_group_store(group)
    peers = _exchange(store, prefix, rank, world_size, segment.nbytes, [segment.fd, control.fd])
    buffers: list[Any] = [None] * world_size
    controls = [control] * world_size
    for peer, fds in peers.items():
        buffers[peer] = _Segment.attach(fds[0], segment.nbytes)
        controls[peer] = _Segment.attach(fds[1], control_bytes)
        for fd in fds:
            os.close(fd)
    return buffers, controls


def _exchange(
    store: dist.Store, prefix: str, rank: int, world_size: int, nbytes: int, fds: list[int]
) -> dict[int, tuple[int, ...]]:
    """The descriptors of every other rank, by rank, in exchange for this rank's ``fds``.

    Each rank listens, sends to all and then accepts; sends to a listening socket do not block, so no order can deadlock.
    """
    name, secret = f"\0pkb-symm-{secrets.token_hex(16)}", secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen(world_size)
        _STORE_SET(store, f"{prefix}/{rank}", json.dumps([name, secret, nbytes]))
        peers = [json.loads(store.get(f"{prefix}/{r}")) for r in range(world_size)]
        sizes = [peer[2] for peer in peers]
        if len(set(sizes)) > 1:
            raise ValueError(f"rendezvous: the ranks' allocations differ in size, by rank {sizes} bytes")
        for r, (their_name, their_secret, _) in enumerate(peers):
            if r != rank:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                    peer.connect(their_name)
                    socket.send_fds(peer, [json.dumps([their_secret, rank]).encode()], fds)
        return _accept(listener, secret, {r for r in range(world_size) if r != rank}, len(fds))


def _accept(listener: socket.socket, secret: str, missing: set[int], num_fds: int) -> dict[int, tuple[int, ...]]:
    received: dict[int, tuple[int, ...]] = {}
    end = time.monotonic() + _CONNECT_SECONDS
    while missing:
        try:
            listener.settimeout(max(end - time.monotonic(), 0.001))
            with listener.accept()[0] as peer:
                peer.settimeout(max(end - time.monotonic(), 0.001))
                message, fds, _, _ = socket.recv_fds(peer, 256, num_fds)
        except TimeoutError:
            raise TimeoutError(f"rendezvous: ranks {sorted(missing)} sent no memory within {_CONNECT_SECONDS:.0f} s") from None
        their_secret, rank = json.loads(message or '["", -1]')
        if their_secret == secret and rank in missing and len(fds) == num_fds:
            received[rank] = tuple(fds)
            missing.remove(rank)
        else:  # a stranger who found the name, or the remains of a dead peer
            for fd in fds:
                os.close(fd)
    return received


def _deadline(timeout_ms: int) -> float:
    return time.monotonic() + timeout_ms / 1e3 if timeout_ms else math.inf


def _reaches(counters: memoryview, index: int, goal: int, deadline: float) -> bool:
    """Wait until a counter is at least ``goal``; False if the deadline (of time.monotonic) passes first."""
    for _ in range(_SPINS):
        if counters[index] >= goal:
            return True
    pause, yields = 5e-6, 0
    while counters[index] < goal:
        if time.monotonic() > deadline:
            return False
        if yields < _YIELDS:
            os.sched_yield()
            yields += 1
        else:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_SLEEP)
    return True


def _make_fence() -> Callable[[], None]:
    if platform.machine() in ("x86_64", "AMD64"):
        return lambda: None
    try:
        fence = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
    except (OSError, AttributeError):
        raise ImportError(f"pkb.symm on {platform.machine()} needs libatomic.so.1: install the package libatomic1") from None
    return lambda: fence(5)  # memory_order_seq_cst


def _make_stagger() -> Callable[[], None]:
    longest = float(os.environ.get("PKB_SYMM_DELAY_US", "0")) * 1e-6
    if longest <= 0:
        return lambda: None
    uniform = SystemRandom().uniform  # the kernel's generator: forked ranks must not share a stream
    return lambda: time.sleep(uniform(0.0, longest))


def meetings() -> int:
    """How often this process has met others in a rendezvous so far."""
    return sum(_rounds.values())


def set_delay(microseconds: float) -> None:
    """Replace the longest random delay of this process's barriers and signals; 0 switches it off."""
    global _stagger
    os.environ["PKB_SYMM_DELAY_US"] = str(microseconds)
    _stagger = _make_stagger()


_fence = _make_fence()
_stagger = _make_stagger()
