"""Symmetric memory on CPU ranks."""

import gc
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pkb import symm
from tests.forked import Ranks, run


def both(rank, world_size, numel=64, dtype=torch.float32):
    tensor = symm.empty(numel, dtype=dtype)
    return tensor, symm.rendezvous(tensor, dist.group.WORLD)


@pytest.mark.parametrize("size", [(3, 5), ((3, 5),), ([3, 5],), (torch.Size([3, 5]),)])
def test_empty_takes_dimensions_or_a_sequence(size):
    tensor = symm.empty(*size, dtype=torch.bfloat16, device="cpu")
    assert tensor.shape == (3, 5) and tensor.dtype == torch.bfloat16 and tensor.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float64, torch.complex64])
def test_empty_of_every_kind_can_be_written(dtype):
    assert symm.empty(4, dtype=dtype).fill_(1).to(torch.complex64).tolist() == [1.0] * 4


def test_empty_without_elements_or_dimensions():
    assert symm.empty(0, 7).shape == (0, 7)
    assert symm.empty(()).shape == () and symm.empty(()).dtype == torch.get_default_dtype()


def test_empty_on_a_gpu_names_torchs_module():
    with pytest.raises(ValueError, match=r"torch.distributed._symmetric_memory"):
        symm.empty(4, device="cuda:0")


def exchange(rank, world_size):
    tensor, handle = both(rank, world_size)
    tensor.copy_(torch.arange(64) + 100.0 * rank)
    handle.barrier()
    seen = [handle.get_buffer(r, (64,), torch.float32).clone() for r in range(world_size)]
    part = handle.get_buffer((rank + 1) % world_size, (2, 3), torch.float32, 10).clone()
    remote = handle.get_remote_tensor(0, [4], torch.float32).clone()
    handle.barrier()
    handle.get_buffer((rank + 1) % world_size, (1,), torch.float32, 63).fill_(-1.0 - rank)
    handle.barrier()
    facts = (handle.rank, handle.world_size, len(set(handle.buffer_ptrs)), handle.buffer_size, handle.multicast_ptr)
    return seen, part, remote, tensor[63].item(), facts, handle.buffer_ptrs[rank] == tensor.data_ptr()


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank_reads_and_writes_every_buffer(world_size):
    for rank, (seen, part, remote, last, facts, own) in enumerate(run(world_size, exchange)):
        for r in range(world_size):
            assert torch.equal(seen[r], torch.arange(64) + 100.0 * r)
        peer = (rank + 1) % world_size
        assert torch.equal(part, torch.arange(10.0, 16).view(2, 3) + 100.0 * peer)
        assert torch.equal(remote, torch.arange(4.0))
        assert last == -1.0 - (rank - 1) % world_size
        assert facts == (rank, world_size, world_size, 256, 0) and own


def bounds(rank, world_size):
    _, handle = both(rank, world_size)
    refused = []
    for attempt in (
        lambda: handle.get_buffer(1 - rank, (65,), torch.float32),
        lambda: handle.get_buffer(1 - rank, (1,), torch.float32, 64),
        lambda: handle.get_buffer(1 - rank, (1,), torch.float32, -1),
        lambda: handle.get_signal_pad(rank, (symm.get_signal_pad_size() + 1,), torch.uint8),
        lambda: handle.barrier(channel=symm.NUM_CHANNELS),
        lambda: handle.put_signal(1 - rank, channel=-1),
        lambda: symm.rendezvous(torch.empty(4), None),
        lambda: symm.rendezvous(handle.get_buffer(1 - rank, (4,), torch.float32), None),
    ):
        with pytest.raises(ValueError) as caught:
            attempt()
        refused.append(str(caught.value))
    with pytest.raises(TypeError, match="no process group"):
        symm.rendezvous(symm.empty(4), 7)
    return refused


def test_what_cannot_be_is_refused_in_one_line():
    for refused in run(2, bounds):
        assert all("\n" not in text and text for text in refused)
        assert "pkb.symm.empty" in refused[-1] and "channel" in refused[4]


def unequal(rank, world_size):
    with pytest.raises(ValueError, match=r"differ in size, by rank \[16, 32\] bytes"):
        symm.rendezvous(symm.empty(4 * (rank + 1)), None)
    return both(rank, world_size)[1].world_size  # and the group still works


def test_allocations_of_unequal_size_are_refused_on_every_rank():
    assert run(2, unequal) == [2, 2]


def identities(rank, world_size):
    tensor, handle = both(rank, world_size)
    again = symm.rendezvous(tensor, dist.group.WORLD)
    by_name = symm.rendezvous(tensor, dist.group.WORLD.group_name)
    by_none = symm.rendezvous(tensor)
    slice_ = tensor[16:32].view(4, 4)
    by_view = symm.rendezvous(slice_, None)
    slice_.fill_(rank + 1.0)
    handle.barrier()
    theirs = by_view.get_buffer(1 - rank, slice_.shape, slice_.dtype, slice_.storage_offset()).clone()
    handle.barrier()
    return again is handle, by_name is handle, by_none is handle, by_view is handle, theirs


def test_one_allocation_and_group_have_one_handle_views_included():
    for rank, (*same, theirs) in enumerate(run(2, identities)):
        assert all(same)
        assert torch.equal(theirs, torch.full((4, 4), 2.0 - rank))


def growth(rank, world_size):
    gc.disable()  # references alone must free what nobody holds
    before = len(os.listdir("/proc/self/fd"))  # a forked rank inherits whatever the tests before have left open
    views = []
    for step in range(1, 21):
        tensor, handle = both(rank, world_size, numel=1000 * step)
        tensor.fill_(step + 0.5 * rank)
        handle.barrier()
        views.append(handle.get_buffer(1 - rank, (1000 * step,), torch.float32))
        assert views[-1].eq(step + 0.5 * (1 - rank)).all()
        handle.barrier()
        del tensor, handle
    old = [bool(view.eq(step + 0.5 * (1 - rank)).all()) for step, view in enumerate(views, 1)]
    mapped = Path("/proc/self/maps").read_text().count("pkb-symm")
    views.clear()
    return old, mapped, Path("/proc/self/maps").read_text().count("pkb-symm"), len(os.listdir("/proc/self/fd")) - before


def test_replaced_buffers_stay_mapped_while_held_and_are_unmapped_afterwards():
    for old, mapped, left, open_files in run(2, growth):
        assert old == [True] * 20
        assert mapped >= 20 and left == 0
        assert open_files < 10


def dropped(rank, world_size):
    tensor, handle = both(rank, world_size)
    tensor.fill_(7.0 + rank)
    handle.barrier()
    if rank == 0:
        tensor = handle = None
        dist.barrier()
        return "/memfd:pkb-symm" in Path("/proc/self/maps").read_text(), 0.0
    dist.barrier()
    return True, handle.get_buffer(0, (64,), torch.float32).mean().item()


def test_a_buffer_that_its_owner_dropped_stays_readable_by_peers():
    (owner_maps, _), (_, value) = run(2, dropped)
    assert not owner_maps and value == 7.0


def test_memory_from_a_stranger_is_refused():
    name, ours, theirs = "\0pkb-symm-test-of-strangers", os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen(2)
        for secret, fd in (("guess", theirs), ("secret", ours)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(name)
                socket.send_fds(peer, [json.dumps([secret, 1]).encode()], [fd])
        received = symm._accept(listener, "secret", {1}, 1)
    assert os.readlink(f"/proc/self/fd/{received[1][0]}") == "/dev/null"
    for fd in (ours, theirs, *received[1]):
        os.close(fd)


def subgroups(rank, world_size):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    tensor = symm.empty(8)
    small, world = symm.rendezvous(tensor, mine), symm.rendezvous(tensor, None)
    assert small is not world and symm.rendezvous(tensor, mine.group_name) is small
    tensor.fill_(float(rank))
    if rank % 2:
        time.sleep(0.05)  # the pairs' barriers must not depend on each other
    small.barrier()
    within = [small.get_buffer(r, (8,), torch.float32)[0].item() for r in range(2)]
    world.barrier()
    everyone = [world.get_buffer(r, (8,), torch.float32)[0].item() for r in range(4)]
    world.barrier()
    return small.rank, within, everyone, small.signal_pad_ptrs[0] != world.signal_pad_ptrs[0]


def test_subgroups_number_their_own_ranks_and_synchronise_apart():
    for rank, (within_rank, within, everyone, apart) in enumerate(run(4, subgroups)):
        assert within_rank == rank // 2
        assert within == [rank % 2, rank % 2 + 2.0] and everyone == [0.0, 1.0, 2.0, 3.0] and apart


def lockstep(rank, world_size, rounds):
    tensor, handle = both(rank, world_size)
    peer = handle.get_buffer((rank + 1) % world_size, (64,), torch.float32)
    wrong = 0
    for step in range(rounds):
        channel = step % symm.NUM_CHANNELS
        tensor.fill_(float(step))
        handle.barrier(channel)
        wrong += not peer.eq(float(step)).all()
        handle.barrier(channel)
    return wrong


@pytest.mark.parametrize("world_size", [2, 4])
def test_barriers_order_writes_and_reads_on_every_channel(world_size):
    assert run(world_size, lockstep, 1000) == [0] * world_size


def signals(rank, world_size):
    tensor, handle = both(rank, world_size, numel=1)
    got = []
    for step in range(200):
        if rank == 0:
            tensor.fill_(float(step))
            handle.put_signal(1, channel=3)
            handle.wait_signal(1, channel=4)
        else:
            handle.wait_signal(0, channel=3)
            got.append(handle.get_buffer(0, (1,), torch.float32).item())
            handle.put_signal(0, channel=4)
    return got


def test_signals_carry_data_from_one_rank_to_another():
    assert run(2, signals)[1] == [float(step) for step in range(200)]


def timeouts(rank, world_size):
    _, handle = both(rank, world_size)
    caught = []
    if rank == 0:
        for wait in (
            lambda: handle.barrier(5, timeout_ms=30),
            lambda: handle.wait_signal(1, 5, timeout_ms=30),
            lambda: [handle.put_signal(1, 6, timeout_ms=30) for _ in range(2)],
        ):
            start = time.monotonic()
            with pytest.raises(TimeoutError, match="within 30 ms") as error:
                wait()
            caught.append((str(error.value), time.monotonic() - start))
    dist.barrier()
    if rank == 1:
        handle.barrier(5, timeout_ms=5000)  # rank 0 has arrived
        handle.wait_signal(0, 6, timeout_ms=5000)  # its first signal was put, the second was not
        with pytest.raises(TimeoutError):
            handle.wait_signal(0, 6, timeout_ms=30)
    return caught


def test_waiting_ends_at_the_timeout_and_says_for_whom():
    caught = run(2, timeouts)[0]
    assert [error.split(":")[0].split(" on")[0] for error, _ in caught] == ["barrier", "wait_signal", "put_signal"]
    assert "ranks [1]" in caught[0][0]
    assert all(0.03 <= seconds < 5 for _, seconds in caught)


def pads(rank, world_size):
    _, handle = both(rank, world_size)
    fresh = int(handle.get_signal_pad(rank).view(torch.int32).abs().sum())
    handle.barrier()
    handle.get_signal_pad(1 - rank, (2,), torch.int64, 1).fill_(rank + 40)
    handle.barrier()
    mine = handle.get_signal_pad(rank, dtype=torch.int64)
    return fresh, mine[:4].tolist(), mine.nbytes, handle.get_signal_pad(rank).data_ptr() == handle.signal_pad_ptrs[rank]


def test_signal_pads_start_at_zero_and_belong_to_the_caller():
    for rank, answer in enumerate(run(2, pads)):
        assert answer == (0, [0, 41 - rank, 41 - rank, 0], symm.get_signal_pad_size(), True)


def wait_for_ever(rank, world_size, pid_pipe):
    tensor, handle = both(rank, world_size, numel=1 << 20)
    tensor.fill_(1.0)
    os.write(pid_pipe, b"x")
    handle.barrier() if rank == 0 else time.sleep(600)


def test_killed_ranks_leave_no_segment_behind():
    before = set(os.listdir("/dev/shm"))
    read, write = os.pipe()
    with Ranks(2, wait_for_ever, write) as ranks:
        assert os.read(read, 1) + os.read(read, 1) == b"xx"
        pids = [p.pid for p in ranks.processes]
        assert all("pkb-symm" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
        assert not {f for f in set(os.listdir("/dev/shm")) - before if "pkb" in f}, "segments have no name even while in use"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for process in ranks.processes:
            process.join(10)
            assert process.exitcode == -signal.SIGKILL
    assert not {f for f in set(os.listdir("/dev/shm")) - before if "pkb" in f}


def latency(rank, world_size):
    _, handle = both(rank, world_size)
    samples = []
    for _ in range(30):
        handle.barrier()
        start = time.perf_counter()
        for _ in range(100):
            handle.barrier()
        samples.append((time.perf_counter() - start) / 100)
    return min(samples), statistics.median(samples)


def test_barrier_of_two_ranks_is_fast():
    best = max(low for low, _ in run(2, latency))
    assert best < 1e-3, f"{best * 1e6:.0f} us"


RACY = """
import sys
from tests.forked import run
from tests.test_symm import racy
print(sum(run(2, racy)))
"""


def racy(rank, world_size):
    """Lacks the barrier that must precede the next write."""
    tensor, handle = both(rank, world_size)
    peer = handle.get_buffer(1 - rank, (64,), torch.float32)
    wrong = 0
    for step in range(100):
        tensor.fill_(float(step))
        handle.barrier()
        wrong += not peer.eq(float(step)).all()
    return wrong


def test_delays_from_the_environment_expose_a_missing_barrier():
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PKB_SYMM_DELAY_US": "1000", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RACY], env=env, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_importing_it_imports_nothing_else_of_pkb():
    code = "import sys, pkb.symm; print(sorted(m for m in sys.modules if m.startswith('pkb')), 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[0] == "['pkb', 'pkb.symm'] False"


SUM_PEERS = """
#include <torch/extension.h>
#include <sched.h>
#include <atomic>
// Adds up the ranks' buffers through their raw addresses, after a barrier of its own on the signal pads.
torch::Tensor sum_peers(std::vector<int64_t> buffers, std::vector<int64_t> pads, int64_t rank, int64_t numel) {
  auto* mine = reinterpret_cast<std::atomic<uint32_t>*>(pads[rank]);
  mine->fetch_add(1);
  for (auto pad : pads)
    while (reinterpret_cast<std::atomic<uint32_t>*>(pad)->load() < mine->load()) sched_yield();
  auto out = torch::zeros({numel});
  for (auto buffer : buffers) out += torch::from_blob(reinterpret_cast<void*>(buffer), {numel});
  return out;
}
"""


def through_pointers(rank, world_size, build):
    from torch.utils.cpp_extension import _import_module_from_library

    module = _import_module_from_library("symm_sum_peers", build, True)
    tensor, handle = both(rank, world_size)
    tensor.copy_(torch.arange(64) * 10.0**rank)
    return module.sum_peers(handle.buffer_ptrs, handle.signal_pad_ptrs, rank, 64)


@pytest.mark.slow
def test_cpp_reaches_peers_through_buffer_ptrs(tmp_path):
    from torch.utils.cpp_extension import load_inline

    load_inline("symm_sum_peers", SUM_PEERS, functions=["sum_peers"], build_directory=str(tmp_path))
    for total in run(2, through_pointers, str(tmp_path)):
        assert torch.equal(total, torch.arange(64) * 11.0)
