"""Whatever a candidate does to its ranks or to the machine: its verdict comes in time, nothing stays, the next one is judged right."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from pkb.errors import HarnessError
from pkb.verdict import Stage, Verdict
from tests.evaluate.conftest import children, descendants, parent

SLOWEST = 20.0  # seconds of wall time, on a machine that does other things too

#: name: (candidate for problem 1, verdict, part of the detail)
FAULTS = {
    "segfault in one rank": (
        """
        import ctypes, torch.distributed as dist
        def solution(tensor):
            if dist.get_rank() == 1: ctypes.string_at(0)
            dist.barrier()
            return tensor
        """,
        Verdict.RUNTIME_ERROR,
        "rank 1 was ended by SIGSEGV",
    ),
    "hang in one rank": (
        """
        import threading, torch.distributed as dist
        def solution(tensor):
            if dist.get_rank() == 1: threading.Event().wait()
            return tensor
        """,
        Verdict.DEADLOCK,
        "no answer from rank 1 within 4 s",
    ),
    "hang that ignores every signal": (
        """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def solution(tensor):
            while True: pass
        """,
        Verdict.DEADLOCK,
        "within 4 s",
    ),
    "exit 0 before the end": (
        "import os\ndef solution(tensor): os._exit(0)",
        Verdict.RUNTIME_ERROR,
        "exited with code 0 before the end",
    ),
    "exit on import": ("import os\nos._exit(3)\ndef solution(tensor): pass", Verdict.RUNTIME_ERROR, "exited with code 3"),
    "sys.exit": ("import sys\ndef solution(tensor): sys.exit(0)", Verdict.RUNTIME_ERROR, "SystemExit"),
    "raise in one rank while the other waits": (
        """
        import torch.distributed as dist
        def solution(tensor):
            if dist.get_rank() == 1: raise ValueError("only here")
            dist.barrier()
        """,
        Verdict.RUNTIME_ERROR,
        "rank 1: ValueError: only here",
    ),
    "daemons that leave their session": (
        """
        import os, signal
        def solution(tensor):
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork(): os._exit(0)
                    while True: signal.pause()
            os.kill(os.getpid(), 9)
        """,
        Verdict.RUNTIME_ERROR,
        "was ended by SIGKILL",
    ),
    "more processes than allowed": (
        """
        import os, signal
        def solution(tensor):
            while True:
                if os.fork() == 0: signal.pause()
        """,
        (Verdict.RUNTIME_ERROR, Verdict.OUT_OF_MEMORY, Verdict.DEADLOCK),  # whichever limit it meets first
        "",
    ),
    "flood of output, then an error": (
        """
        import sys
        def solution(tensor):
            for _ in range(60): sys.stdout.write("x" * 1_000_000)
            sys.stdout.flush()
            raise ValueError("after the flood")
        """,
        Verdict.RUNTIME_ERROR,
        "after the flood",
    ),
    "scratch filled to the brim": (
        """
        import os
        def solution(tensor):
            with open(os.path.join(os.environ["TMPDIR"], "big"), "wb") as file:
                while True: file.write(b"x" * (1 << 20))
        """,
        Verdict.RUNTIME_ERROR,
        "",
    ),
    "an error without end": (
        "def solution(tensor): raise ValueError('long ' * 10_000_000)",
        Verdict.RUNTIME_ERROR,
        "ValueError: long long",
    ),
    "recursion": ("def solution(tensor): return solution(tensor)", Verdict.RUNTIME_ERROR, "RecursionError"),
    "an endless answer": (
        """
        def solution(tensor):
            out = []
            out.append(out)
            return out
        """,
        Verdict.RUNTIME_ERROR,
        "RecursionError",
    ),
}

#: Candidates that reach into the harness's own objects in their process: (code that runs in solution, verdict, detail).
BREAKS = {
    "garbage in place of an answer": (
        "contestant.link.sendall(b'\\xff' * 7 + b'\\0' + b'nonsense')",
        Verdict.WRONG_STRUCTURE,
        "far more than was asked for",
    ),
    "an answer that is no tree": (
        "from pkb.evaluate import wire; wire.send_bytes(contestant.link, b'{}'); wire.send_bytes(contestant.link, b'')",
        Verdict.TAMPERING,
        "rule protocol",
    ),
    "an answer of another form": (
        "from pkb.evaluate import wire; wire.send_tree(contestant.link, [1, 2, 3])",
        Verdict.TAMPERING,
        "not an answer",
    ),
    "half an answer": (
        "from pkb.evaluate import wire; wire.send_tree = lambda link, *a: link.sendall((9).to_bytes(8, 'little') + b'{')",
        Verdict.TAMPERING,
        "half an answer",
    ),
    "no answer": ("from pkb.evaluate import wire; wire.send_tree = lambda *a: None", Verdict.TAMPERING, "half an answer"),
    "a closed link": ("import socket; contestant.link.shutdown(socket.SHUT_RDWR)", Verdict.RUNTIME_ERROR, "BrokenPipe"),
    "no message": (
        "from pkb.evaluate import wire; wire.send_bytes(contestant.seat.control, b'[]')",
        Verdict.TAMPERING,
        "not a JSON object",
    ),
    "messages of the wrong kind": (
        "from pkb.evaluate import wire; wire.send_message(contestant.seat.control, storages=7, seconds='x')",
        None,
        "",
    ),
}


@pytest.fixture(autouse=True)
def clean_afterwards(node, allreduce):
    """After each fault the machine is as it was, and the next candidate gets the verdict that it deserves."""
    yield
    assert node.left_behind() == []
    found = node.judge(allreduce, 1, "evaluation.trials=1")
    assert found.verdict is Verdict.CORRECT, found.detail


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_in_time_with_its_verdict(node, name):
    source, verdict, said = FAULTS[name]
    start = time.monotonic()
    found = node.judge(textwrap.dedent(source))
    assert time.monotonic() - start < SLOWEST
    assert found.verdict in (verdict if isinstance(verdict, tuple) else (verdict,)), found.detail
    assert said in found.detail and len(found.detail) < 3000
    assert len(str(found.extra.get("log", ""))) <= 4000


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_protocol_is_never_the_machines_fault(node, name):
    code, verdict, said = BREAKS[name]
    source = f"""
import gc
def solution(tensor):
    contestant = next(o for o in gc.get_objects() if type(o).__name__ == "Contestant")
    {code}
    return tensor
"""
    found = node.judge(source, 1, "evaluation.limits.timing_seconds=2")
    assert verdict is None or found.verdict is verdict, (found.verdict, found.detail)
    assert found.verdict not in (Verdict.CORRECT, Verdict.HARNESS_ERROR)
    assert said in found.detail


@pytest.mark.parametrize("said", ["-1", "10**30", "'x'", "None", "float('nan')", "[]"])
def test_a_rank_that_lies_about_its_time_in_kind_is_caught(node, allreduce, said):
    source = f"""{allreduce}
import gc
contestant = next(o for o in gc.get_objects() if type(o).__name__ == "Contestant")
honest = contestant.do_block
contestant.do_block = lambda **k: dict(honest(**k), ns={said})
"""
    found = node.judge(source, 1, "evaluation.timing.enabled=true", "evaluation.timing.warmup=10", "evaluation.timing.blocks=3")
    assert (found.verdict, found.stage) == (Verdict.TAMPERING, Stage.TIMING), found.detail


def test_a_reply_that_comes_before_the_work_is_caught(node, allreduce):
    """The parent's clock stops when the answer has arrived, not when the rank says that it is done.

    One slow block of the reference can excuse the candidate's (docs/timing.md), so on a busy machine it takes more than one look.
    """
    source = f"""{allreduce}
import gc, time
from pkb.evaluate import wire
contestant = next(o for o in gc.get_objects() if type(o).__name__ == "Contestant")
patient = contestant.do_block
def hasty(first, count, renew, copy, place=None, changed=()):
    if place is not None: return patient(first, count, renew, copy, place, changed)
    sets = [contestant.sets[(first + i) % len(contestant.sets)] for i in range(count)]
    control = contestant.seat.control
    wire.send_message(control, armed=True)
    wire.receive_message(control)
    wire.send_message(control, ns=1000 * max(1, count))
    contestant.done = []
    for s in sets:
        out = solution(*s)
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end: pass
        contestant.done.append((out, s))
    raise Silence
class Silence(Exception): pass
contestant.do_block = hasty
honest = wire.send_message
def quiet(link, **fields):
    if "Silence" not in str(fields.get("error")): honest(link, **fields)
wire.send_message = quiet
"""
    quick = ("evaluation.timing.enabled=true", "evaluation.timing.warmup=10", "evaluation.timing.blocks=4")
    looks = (node.judge(source, 1, *quick) for _ in range(4))
    found = next((f for f in looks if f.verdict is Verdict.TAMPERING), None)
    assert found is not None and found.stage is Stage.TIMING
    assert "rule outside-clock" in found.detail


# -- the machine's faults ----------------------------------------------------------------------------------------------


def test_a_reference_rank_that_died_between_candidates_is_replaced(node, allreduce):
    node.judge(allreduce, 1, "evaluation.trials=1")
    victims = node.reference_ranks()
    os.kill(victims[1], signal.SIGKILL)
    wait_until_gone(victims[1:])
    assert node.judge(allreduce, 1, "evaluation.trials=1").verdict is Verdict.CORRECT
    assert not set(victims) & set(node.reference_ranks())


@pytest.mark.parametrize("call", [3, 60], ids=["while it is judged", "while it is timed"])
@pytest.mark.parametrize("then", ["raise ValueError('gone')", "threading.Event().wait()", "pass"])
def test_a_reference_rank_that_dies_under_a_candidate_is_the_machines_fault(node, allreduce, call, then):
    """Whatever the candidate does meanwhile: no verdict falls on it."""
    node.judge(allreduce, 1, "evaluation.trials=1")
    victim = node.reference_ranks()[0]
    source = allreduce.replace("def solution(tensor):", "def solution(tensor):\n    rest()") + (
        "\nimport threading\ncalls = 0\ndef rest():\n    global calls\n    calls += 1\n"
        f"    if calls == {call}:\n        print('resting', flush=True)\n        threading.Event().wait(1)\n        {then}\n"
    )
    node.candidate = None
    killer = threading.Thread(target=kill_when_it_rests, args=(node, victim))
    killer.start()
    with pytest.raises(HarnessError, match="reference ranks"):
        node.judge(source, 1, "evaluation.timing.enabled=true", "evaluation.timing.blocks=3")
    killer.join()


def kill_when_it_rests(node, victim, seconds=30.0):
    deadline = time.monotonic() + seconds
    while node.candidate is None or b"resting" not in node.candidate.log.head:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize("end, killed", [("os.kill(os.getpid(), 9)", True), ("os._exit(9)", None), ("raise OSError", None)])
def test_a_rank_that_was_killed_is_told_from_one_that_ended(node, end, killed):
    """Nobody can tell who sent a SIGKILL; a sweep therefore judges such a candidate once more."""
    found = node.judge(f"import os\ndef solution(tensor):\n    {end}", 1, "evaluation.trials=1")
    assert (found.verdict, found.extra.get("killed")) == (Verdict.RUNTIME_ERROR, killed)


def test_a_spare_group_that_died_is_replaced(node, allreduce):
    node.judge(allreduce, 1, "evaluation.trials=1")
    spare = node.evaluator._spare.result()
    victim = children(spare.pid)[0]
    os.kill(victim, signal.SIGKILL)
    wait_until_gone([victim])
    assert node.judge(allreduce, 1, "evaluation.trials=1").verdict is Verdict.CORRECT


def test_the_zygotes_death_is_survived(node, allreduce):
    everything = descendants(node.zygote)
    os.kill(node.zygote, signal.SIGKILL)
    wait_until_gone(everything)
    assert node.judge(allreduce, 1, "evaluation.trials=1").verdict is Verdict.CORRECT


def test_the_evaluators_death_leaves_no_process_and_its_folder_goes_with_the_next(tmp_path):
    """kill -9 of the parent while its candidate hangs."""
    program = """
import sys, threading
from pkb import config, problem
from pkb.evaluate.node import Evaluator
from pkb.records import Job
c = config.load(["evaluation.limits.call_seconds=600", "evaluation.trials=1"])
source = "import threading\\ndef solution(tensor):\\n    print('running', flush=True)\\n    threading.Event().wait()"
with Evaluator(c) as evaluator:
    def watch():
        import gc, time
        from pkb.evaluate.ranks import RankGroup
        while not any(isinstance(o, RankGroup) and b"running" in o.log.head for o in gc.get_objects()): time.sleep(0.02)
        print("running", flush=True)
    threading.Thread(target=watch, daemon=True).start()
    evaluator.evaluate(Job(problem.resolve(1), source, 2, "smoke"))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout.readline() == b"running\n"
            everything = descendants(process.pid)
            assert len(everything) >= 9, "a zygote, a reference group and a candidate group"
        finally:
            process.kill()
        wait_until_gone(everything)
    left = list(tmp_path.glob("pkb-node-*"))
    assert len(left) == 1
    from pkb.evaluate import folders

    keep, folders.tempfile.tempdir = folders.tempfile.tempdir, str(tmp_path)
    try:
        mine, descriptor = folders.claim("pkb-node-")
    finally:
        folders.tempfile.tempdir = keep
    assert list(tmp_path.glob("pkb-node-*")) == [mine], "the dead owner's folder is gone, ours is there"
    folders.release(mine, descriptor)
    assert not list(tmp_path.iterdir())


def wait_until_gone(pids, seconds=20.0):
    """Block until every process has ended; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([handle], [], [], left)[0], f"process {pid} (parent {parent(pid)}) still lives"
        finally:
            os.close(handle)


def test_folders_of_the_living_stay(tmp_path, monkeypatch):
    from pkb.evaluate import folders

    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    first, held = folders.claim("x-")
    second, other = folders.claim("x-")
    assert first.is_dir() and second.is_dir()
    folders.release(first, held)
    folders.release(second, other)
    assert list(Path(tmp_path).iterdir()) == []
