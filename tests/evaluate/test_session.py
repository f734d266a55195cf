"""Every verdict, by a candidate that deserves it, with a detail that says why."""

import re

import pytest

from pkb.verdict import Stage, Verdict

#: name: (candidate for problem 1, verdict, stage, what the detail says)
CASES = {
    "empty answer": ("  \n", Verdict.NO_CODE, Stage.CHECK, "holds no code"),
    "no solution": ("def solve(tensor): return tensor", Verdict.BAD_INTERFACE, Stage.CHECK, "no function 'solution'"),
    "other parameters": (
        "def solution(x): return x",
        Verdict.BAD_INTERFACE,
        Stage.CHECK,
        r"solution\(x\) where solution\(tensor\)",
    ),
    "other parameters, bound late": (
        "solution = lambda x, y: x",
        Verdict.BAD_INTERFACE,
        Stage.LOAD,
        r"solution\(x, y\) where solution\(tensor\)",
    ),
    "not Python": ("def solution(tensor:", Verdict.LOAD_ERROR, Stage.CHECK, r"not Python: .* \(line 1\)"),
    "import fails": (
        "import no_such_module\ndef solution(tensor): return tensor",
        Verdict.LOAD_ERROR,
        Stage.LOAD,
        r"rank \d: ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "raises on every rank": (
        "def solution(tensor): raise ValueError('no idea')",
        Verdict.RUNTIME_ERROR,
        Stage.CORRECTNESS,
        r"rank \d: ValueError: no idea",
    ),
    "asks for too much memory": (
        "import torch\ndef solution(tensor): return torch.empty(1 << 50)",
        Verdict.OUT_OF_MEMORY,
        Stage.CORRECTNESS,
        "can't allocate memory",
    ),
    "waits for ever": (
        "import threading\ndef solution(tensor): threading.Event().wait()",
        Verdict.DEADLOCK,
        Stage.CORRECTNESS,
        "no answer from rank 0, 1 within 4 s",
    ),
    "other dtype": (
        "def solution(tensor): return tensor.float()",
        Verdict.WRONG_STRUCTURE,
        Stage.CORRECTNESS,
        r"trial 0 \(plain\), rank 0: output: expected bfloat16\[64, 96\], got float32\[64, 96\]",
    ),
    "two outputs": (
        "def solution(tensor): return tensor, tensor",
        Verdict.WRONG_STRUCTURE,
        Stage.CORRECTNESS,
        r"got tuple\(bfloat16\[64, 96\], bfloat16\[64, 96\]\)",
    ),
    "a tensor that computes when looked at": (
        "import torch\nclass Lazy(torch.Tensor): pass\ndef solution(tensor): return tensor.as_subclass(Lazy)",
        Verdict.WRONG_STRUCTURE,
        Stage.CORRECTNESS,
        r"not a plain tensor \(Lazy\)",
    ),
    "zeros": (
        "import torch\ndef solution(tensor): return torch.zeros_like(tensor)",
        Verdict.MISMATCH,
        Stage.CORRECTNESS,
        r"trial 0 \(plain\), rank \d: output\[\d+, \d+\]: expected \S+, got 0 .*wrong on every rank",
    ),
    "its own input": ("def solution(tensor): return tensor.clone()", Verdict.MISMATCH, Stage.CORRECTNESS, "trial 0"),
    "wrong on one rank": (
        "import torch.distributed as dist\n"
        "def solution(tensor):\n    out = tensor.clone()\n    dist.all_reduce(out)\n    return out * (1 + dist.get_rank())",
        Verdict.MISMATCH,
        Stage.CORRECTNESS,
        r"rank 1: output.*wrong on rank 1 only",
    ),
    "changes its input": (
        "import torch.distributed as dist\ndef solution(tensor):\n    dist.all_reduce(tensor)\n    return tensor",
        Verdict.MISMATCH,
        Stage.CORRECTNESS,
        "input 'tensor' was changed",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_verdict(node, name):
    source, verdict, stage, said = CASES[name]
    found = node.judge(source)
    assert (found.verdict, found.stage) == (verdict, stage), found.detail
    assert re.search(said, found.detail), found.detail
    assert "\n" not in found.detail and found.speedup is None


def test_a_right_candidate_is_correct_and_its_row_is_complete(node, allreduce):
    found = node.judge(allreduce)
    assert (found.verdict, found.stage, found.detail) == (Verdict.CORRECT, Stage.DONE, "")
    assert found.trials == 3 and 0 <= found.max_error <= 1
    assert (found.world_size, found.size, found.dtype, found.device) == (2, "smoke", "bfloat16", "cpu")
    assert (found.node, found.policy, found.measured) == ("test", "metadata", None)
    assert found.collective_bytes == 0 and found.reuses_output is False
    assert found.speedup is None, "timing was switched off"


def test_a_missing_barrier_is_nondeterministic(node, allreduce):
    first, second = (m.start() for m in re.finditer("    handle.barrier", allreduce))
    racy = allreduce[:second] + allreduce[second:].replace("    handle.barrier()\n", "", 1)
    assert first < second and racy.count("barrier") == 1
    found = node.judge(racy)
    assert found.verdict is Verdict.NONDETERMINISTIC
    assert re.search(r"right in isolation, wrong .*call \d+ \(trial \d\), rank \d: ", found.detail)


def test_collectives_on_the_data_are_forbidden_but_still_measured(node, reference):
    found = node.judge(
        reference(1), 1, "evaluation.timing.enabled=true", "evaluation.timing.blocks=3", "evaluation.timing.warmup=20"
    )
    assert (found.verdict, found.stage, found.measured) == (Verdict.FORBIDDEN, Stage.DONE, "correct")
    assert "all_reduce moved floating-point tensors" in found.detail
    assert found.collective_bytes > 0 and found.speedup > 0 and found.speedup_low <= found.speedup <= found.speedup_high


def test_a_wrong_candidate_that_uses_collectives_is_judged_by_its_values(node):
    source = "import torch.distributed as dist\ndef solution(tensor):\n    out = tensor.clone()\n    dist.all_reduce(out)\n    return -out"
    assert node.judge(source).verdict is Verdict.MISMATCH


def test_the_policy_any_allows_collectives(node, reference):
    found = node.judge(reference(1), 1, "integrity.collectives=any")
    assert (found.verdict, found.policy) == (Verdict.CORRECT, "any")


def test_a_clock_that_stands_still_is_tampering(node, allreduce):
    busy = (
        "\nright = solution\ndef solution(tensor):\n    torch.ones(400, 400) @ torch.ones(400, 400)\n    return right(tensor)\n"
    )
    source = "import time\ntime.perf_counter_ns = lambda: 0\n" + allreduce + busy
    found = node.judge(source, 1, "evaluation.timing.enabled=true", "evaluation.timing.blocks=4", "evaluation.timing.warmup=20")
    assert (found.verdict, found.stage) == (Verdict.TAMPERING, Stage.TIMING), found.detail
    assert "rule outside-clock" in found.detail


def test_cpp_that_does_not_compile_is_a_compile_error_with_the_first_error_first(node):
    source = """
from torch.utils.cpp_extension import load_inline
CODE = "int f() { return no_such_name; }"
module = load_inline("broken", CODE, functions=["f"], no_implicit_headers=True)
def solution(tensor): return tensor
"""
    found = node.judge(source)
    assert (found.verdict, found.stage) == (Verdict.COMPILE_ERROR, Stage.BUILD)
    assert "error" in found.detail and "no_such_name" in found.detail
    assert found.build_log.startswith(found.detail[:40])


def test_slow_problems_get_more_time_before_a_call_is_a_deadlock(node, allreduce, monkeypatch):
    """evaluation.limits.call_seconds is meant for quick calls; here it is shorter than any call."""
    monkeypatch.setattr("pkb.evaluate.session.PATIENCE", 1e4)  # this machine may be very busy
    slow = allreduce.replace("def solution(tensor):", "import time\ndef solution(tensor):\n    time.sleep(0.002)")
    found = node.judge(slow, 1, "evaluation.limits.call_seconds=0.01", "size.M=4096", "size.N=512")
    assert found.verdict is Verdict.CORRECT, found.detail


def test_a_returned_persistent_buffer_is_no_fault_and_is_noted(node, allreduce):
    source = (
        allreduce.replace("    return out.reshape", "    return keep(out).reshape")
        + """
_out = {}
def keep(x):
    return _out.setdefault((x.shape, x.dtype), torch.empty_like(x)).copy_(x)
"""
    )
    found = node.judge(source, 1, "evaluation.trials=6")
    assert (found.verdict, found.reuses_output) == (Verdict.CORRECT, True)


def test_inputs_are_dead_once_the_call_returns(node, allreduce):
    """A candidate that looks at its previous input again finds it overwritten."""
    source = (
        allreduce
        + """
_last = []
inner = solution
def solution(tensor):
    out = inner(tensor)
    if _last and _last[-1].shape == out.shape:
        out = out + 0 * _last[-1]
    _last.append(tensor)
    return out
"""
    )
    assert node.judge(source).verdict is Verdict.NONDETERMINISTIC


def test_seconds_by_stage_add_up(node, allreduce):
    found = node.judge(allreduce, 1, "evaluation.timing.enabled=true", "evaluation.timing.blocks=3")
    stages = dict(found.seconds_by_stage)
    total = stages.pop("total")
    assert {"check", "build", "load", "correctness", "timing", "end"} == set(stages)
    assert sum(stages.values()) == pytest.approx(total, rel=0.05, abs=0.05)


@pytest.mark.parametrize("ident", [2, 3, 5, 6, 8])
def test_references_of_other_problems_are_right_as_their_own_candidates(node, reference, ident):
    found = node.judge(reference(ident), ident, "integrity.collectives=any")
    assert found.verdict is Verdict.CORRECT, found.detail
