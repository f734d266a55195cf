"""What is kept of the GPUs' state, with a stand-in for nvidia-smi."""

import pytest

from pkb.evaluate import gpu_state
from pkb.evaluate import node as nodes

NEW = """#!/bin/sh
echo "$@" >> {log}
echo "NVIDIA H200, 580.159.04, 1980, 1980, 3201, 412.50, 700.00, 41, 0x0000000000000000"
echo "NVIDIA H200, 580.159.04, 1200, 1980, 3201, 699.10, 700.00, 88, 0x0000000000000024"
"""
OLD = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *clocks_event_reasons*) echo "not a valid field"; exit 2;; esac
echo "Tesla V100, 470.1, 1380, 1530, 877, [N/A], 300.00, 41, [N/A]"
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put a script under nvidia-smi's name; returns where its arguments are noted."""

    def put(script):
        path, log = tmp_path / "nvidia-smi", tmp_path / "log"
        path.write_text(script.format(log=log))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return log

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


def test_clocks_power_and_reasons_of_each_device(smi):
    log = smi(NEW)
    first, second = gpu_state.ask([1, 0, 1]).answer()
    assert first["name"] == "NVIDIA H200" and (first["sm_mhz"], first["max_sm_mhz"], first["power_w"]) == (1980, 1980, 412.5)
    assert first["held_down_by"] == [] and second["celsius"] == 88
    assert second["held_down_by"] == ["software power cap", "software thermal slowdown"]
    assert "--id=0,1 " in log.read_text()


def test_devices_are_named_as_the_process_sees_them(smi, monkeypatch):
    log = smi(NEW)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,5,7")
    gpu_state.ask([0, 2]).answer()
    assert "--id=GPU-a,7 " in log.read_text()


def test_older_drivers_are_asked_by_the_older_name_and_may_not_know(smi):
    log = smi(OLD)
    (state,) = gpu_state.ask([0]).answer()
    assert state["name"] == "Tesla V100" and state["power_w"] is None and state["held_down_by"] is None
    assert "clocks_throttle_reasons" in log.read_text()


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\n"], ids=["fails", "says nothing"])
def test_nobody_can_tell(smi, script):
    smi(script)
    assert gpu_state.ask([0]).answer() == []


def test_no_tool_and_no_devices(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_state.ask([0]).answer() == []
    assert gpu_state.ask([]).process is None


def test_a_tool_that_hangs_is_ended(smi, monkeypatch):
    smi("#!/bin/sh\nexec sleep 100\n")
    monkeypatch.setattr(gpu_state, "SECONDS", 0.2)
    question = gpu_state.ask([0])
    assert question.answer() == [] and question.process.returncode != 0


def test_a_measurement_keeps_the_state_before_and_after(smi, node, allreduce, monkeypatch):
    smi(NEW)
    session = nodes.Session
    monkeypatch.setattr(nodes, "Session", lambda *a, **k: session(*a, **{**k, "gpus": [0, 1]}))  # on CPU ranks all the same
    ask, asked = gpu_state.ask, []
    monkeypatch.setattr(gpu_state, "ask", lambda devices, *more: asked.append(devices) or ask(devices, *more))
    judged = node.judge(
        allreduce, 1, "evaluation.timing.enabled=true", "evaluation.timing.blocks=3", "evaluation.timing.warmup=5"
    )
    assert judged.verdict == "correct", judged.detail
    assert asked == [[0, 1], [0, 1]]
    kept = judged.extra["timing"]["gpus"]
    assert [s["sm_mhz"] for s in kept["before"]] == [s["sm_mhz"] for s in kept["after"]] == [1980, 1200]
