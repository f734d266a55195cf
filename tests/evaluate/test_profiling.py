"""What traces add up to, from traces made by hand; and one from real ranks."""

import json

import pytest

from pkb.config import load
from pkb.evaluate import one, profiling
from tests.evaluate.faulty import candidate


def event(name, ts, dur, cat="kernel", tid=7):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "pid": 1, "tid": tid}


def call(ts, dur):
    return event(profiling.CALL, ts, dur, "user_annotation", 1)


def trace(*events):
    return json.dumps({"traceEvents": list(events)}).encode()


def of(*events, own=()):
    (found,) = profiling.summary([trace(*events)], own)["ranks"]
    return found


def test_device_time_is_split_into_communication_compute_their_overlap_and_idle():
    found = of(
        call(0, 100),
        event("ncclDevKernel_AllReduce", 0, 40),
        event("gemm", 20, 40, tid=8),
        event("Memcpy PtoP (Device -> Device)", 80, 10, "gpu_memcpy"),
    )
    assert (found["communication"], found["compute"], found["overlapped"], found["idle"]) == (0.5, 0.4, 0.2, 0.3)
    assert found["gaps"] == {"count": 1.0, "median_us": 20.0, "longest_us": 20.0}
    assert found["top"][0] == {"name": "ncclDevKernel_AllReduce", "kind": "communication", "share": 0.4, "count": 1.0}


def test_device_work_that_outlasts_the_launching_call_counts():
    assert of(call(0, 10), event("gemm", 5, 95))["call_ms"] == 0.1


def test_a_candidate_s_own_kernels_are_neither_one_nor_the_other():
    found = of(call(0, 100), event("void fused_add<float>(int)", 0, 60), event("gemm", 60, 40), own=["fused_add"])
    assert (found["fused"], found["compute"], found["communication"]) == (0.6, 0.4, 0.0)


def test_waiting_inside_an_operator_is_communication_and_what_no_operator_covers_is_idle():
    found = of(
        call(0, 100),
        event("aten::add", 0, 50, "cpu_op", 1),
        event("pkb.symm.barrier", 10, 30, "user_annotation", 1),
        event("aten::mul", 60, 10, "cpu_op", 2),
    )
    assert (found["communication"], found["compute"], found["idle"]) == (0.3, 0.2, 0.5), (
        "another thread's work is not this call's"
    )
    assert [(t["name"], t["share"]) for t in found["top"]] == [("pkb.symm.barrier", 0.3), ("aten::add", 0.2)]
    assert found["gaps"] is None


def test_shares_are_per_call():
    found = profiling.summary([trace(call(0, 50), event("k", 0, 50), call(50, 50), event("k", 50, 50))])
    assert found["calls"] == 2 and found["ranks"][0]["call_ms"] == 0.05 and found["ranks"][0]["top"][0]["count"] == 1.0


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"traceEvents": 3}', b'{"traceEvents": [1, {"ph": "X", "ts": "a"}]}'])
def test_what_is_no_trace_is_left_out(data):
    assert profiling.summary([data]) == {"calls": 0, "ranks": []}


def test_kernels_are_found_by_name():
    source = """
    __global__ void __launch_bounds__(256) first(float* x) {}
    extern "C" __global__ void second(int n) {}
@triton.jit
def third(x): pass
"""
    assert profiling.kernels_in(source) == ["first", "second", "third"]


def test_a_file_is_profiled_on_real_ranks_and_its_traces_are_kept(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(candidate("return total(tensor).to(tensor.dtype)"))
    found = one.profile_file(file, "1", load([]), tmp_path / "out", 3)
    assert found["calls"] == 3 and [r["rank"] for r in found["ranks"]] == [0, 1]
    names = {t["name"] for r in found["ranks"] for t in r["top"]}
    assert "pkb.symm.barrier" in names
    kept = json.loads((tmp_path / "out" / "rank1.json").read_text())
    assert any(e.get("name") == profiling.CALL for e in kept["traceEvents"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == found


def test_a_candidate_that_does_not_run_is_named(tmp_path):
    from pkb.errors import UserError

    file = tmp_path / "kernel.py"
    file.write_text("def solution(tensor):\n    raise ValueError('no')\n")
    with pytest.raises(UserError, match=r"cannot be profiled: runtime_error: rank \d: ValueError: no"):
        one.profile_file(file, "1", load([]), None, 3)
