"""The GPU benchmark's bookkeeping, tried on CPU ranks: it stops in time, continues, and gives up what never ends."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from pkb.errors import UserError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """The benchmark's modules, imported as its command line imports them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    names = ("gpu_state", "gpu_faults", "gpu_steps", "gpu_report", "gpu")
    yield [importlib.import_module(n) for n in names]
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def state(modules, tmp_path):
    return modules[0].State.open(tmp_path / "deep" / "state.json", {"ranks": 2})


def plenty():
    return 1e9


def test_results_survive_the_call(modules, state):
    assert modules[0].attempt(state, "faults/a", lambda: {"verdict": "correct"}, plenty)
    again = modules[0].State.open(state.path, {"ranks": 2})
    assert again.pending(["faults/a", "faults/b"]) == ["faults/b"]
    assert again.items["faults/a"]["verdict"] == "correct"


def test_an_item_that_may_not_fit_is_not_begun(modules, state):
    assert not modules[0].attempt(state, "faults/a", lambda: pytest.fail("begun"), lambda: 1.0)
    assert state.pending(["faults/a"]) == ["faults/a"]
    state.items |= {"faults/x": {"seconds": 2.0}, "faults/y": {"seconds": 4.0}}
    assert state.guess("faults/a") == 6.0


def test_an_item_that_raises_is_tried_once_more_and_then_given_up(modules, state):
    def fail():
        raise RuntimeError("the node is sick")

    for tries in (1, 2):
        assert modules[0].attempt(state, "references/a", fail, plenty), "the next item is tried all the same"
        assert state.tries["references/a"] == tries
    assert state.items["references/a"] == {"error": "RuntimeError: the node is sick"}


def test_an_item_in_which_calls_end_is_given_up(modules, state):
    for _ in range(2):
        state = modules[0].State.open(state.path, {"ranks": 2})
        assert state.pending(["faults/hang"])
        state.begin("faults/hang")  # and the call is killed
    state = modules[0].State.open(state.path, {"ranks": 2})
    assert state.items["faults/hang"] == {"error": "the call ended during this item"}


def test_other_settings_and_foreign_files_are_refused(modules, state, tmp_path):
    state.save()
    with pytest.raises(UserError, match="other settings \\(ranks\\)"):
        modules[0].State.open(state.path, {"ranks": 4})
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps([1]))
    with pytest.raises(UserError, match="no state of this benchmark"):
        modules[0].State.open(foreign, {})


def test_every_item_of_a_gpu_run_is_known_without_a_gpu(modules):
    gpu = modules[-1]
    steps = gpu.items(gpu.arguments(["--state", "s.json"]))
    assert len(steps["candidates"]) >= 20 and len(steps["faults"]) == 7 and len(steps["references"]) == 87
    some = gpu.items(gpu.arguments(["--state", "s.json", "--problems", "1,9", "--steps", "candidates,references"]))
    assert some["candidates"] == [
        "candidates/cuda-001_allreduce",
        "candidates/triton-001_allreduce",
        "candidates/triton-009_layernorm_backward",
    ]
    assert len(some["references"]) == 2


def test_multicast_stays_off(modules):
    assert modules[-1].ENVIRONMENT == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }


@pytest.mark.slow
def test_two_calls_finish_what_one_could_not(modules, tmp_path, monkeypatch, capfd):
    gpu, path = modules[-1], tmp_path / "state.json"
    for name in gpu.ENVIRONMENT:
        monkeypatch.setenv(name, "0")  # put back afterwards
    quick = ["evaluation.trials=2", "evaluation.timing.blocks=3", "evaluation.timing.warmup_seconds=0.1"]
    common = [
        "--state",
        str(path),
        "--device",
        "cpu",
        "--size",
        "smoke",
        "--problems",
        "3",
        "--steps",
        "doctor,candidates,references",
    ]
    assert gpu.main([*common, "--budget-seconds", "100", *quick]) == 3, "time for the doctor's guess, not for a build"
    assert sorted(modules[0].State.read(path).items) == ["doctor/machine"]
    assert gpu.main([*common, "--budget-seconds", "300", *quick]) == 0
    found = modules[0].State.read(path)
    assert found.items["candidates/shm-003_broadcast"]["verdict"] == "correct"
    row = found.items["references/003_broadcast"]
    assert row["verdict"] == "correct" and row["oracle_error"] == 0.0 and row["bound_ms"] > 0 and "contains_1" in row
    assert [c["remaining"] for c in found.calls] == [2, 0]
    assert found.batches[0]["judged"] == 1

    capfd.readouterr()
    assert gpu.main(["--state", str(path), "--report"]) == 0
    text = capfd.readouterr().out
    assert "| shm-003_broadcast | correct |" in text and "A/A on 1" in text and "candidates in" in text
