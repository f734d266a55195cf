"""What people see of a sweep: one line, a live table, and the status of a run that somebody else writes."""

import io

import pytest
from rich.console import Console

from pkb.config import AgentConfig
from pkb.errors import UserError
from pkb.records import Generation
from pkb.sweep import static, status, view
from pkb.sweep.progress import Progress
from pkb.verdict import GenerationStatus, Verdict
from tests.sweep import stubs


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def busy_sweep():
    """Two models, two nodes of which one is quarantined, after 100 s."""
    clock = Clock()
    progress = Progress(clock)
    progress.begin("fast-model", 10, 4)
    progress.begin("dear-model", 10, 0)
    progress.move("fast-model", None, "generate")
    progress.move("fast-model", "generate", "evaluate")
    progress.move("dear-model", None, "generate")
    progress.node("node-a", "ready")
    progress.node("node-b", "quarantined", "canary: mismatch")
    progress.node_begins("node-a", "fast-model/001_allreduce/2.0")
    clock.now += 50
    progress.node_ends("node-a")
    clock.now += 50
    job = static.job_of(Generation(stubs.key(), GenerationStatus.OK, "", "", source=""), stubs.settings())
    progress.judged("fast-model", stubs.evaluation(job, Verdict.MISMATCH))
    progress.notice("node node-b quarantined: canary: mismatch")
    return progress


def test_one_line_says_how_far_how_fast_and_how_long():
    text = view.line(busy_sweep().snapshot())
    assert text.startswith("[1m40s] 5/20 judged") and "generate 1" in text and "evaluate 1" in text
    assert "1/2 nodes" in text and "0.6/min" in text and "left" in text


def test_one_line_says_what_is_waited_for_at_the_start():
    progress = Progress()
    progress.begin("fast-model", 10, 4)
    assert view.line(progress.snapshot()).endswith("| connecting to Ray")
    progress.state = "running"
    assert view.line(progress.snapshot()).endswith("| no node yet")


def test_the_live_table_shows_models_stages_verdicts_and_what_ails_a_node():
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(view.table(busy_sweep().snapshot()))
    text = console.export_text()
    for expected in ("fast-model", "5/10", "mismatch 1", "dear-model", "node-b", "quarantined: canary: mismatch", "50%"):
        assert expected in text


def test_utilisation_is_the_share_of_the_time_that_nodes_judge():
    progress = busy_sweep()
    assert progress.utilisation() == 50 / 200
    assert progress.gauges()["node_busy", "node", "node-a"] == 0.5
    assert progress.gauges()["attempts", "state", "judged"] == 5


def test_status_of_a_run_that_is_being_written(tmp_path):
    run = tmp_path / "run"
    seen = {}

    def judge(job, node):
        if "during" not in seen and stubs.outcomes(run):
            seen["during"] = status.read(run)
        return Verdict.CORRECT

    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(judge, names=("only",)))
    assert "process" in seen["during"]["writer"] and not seen["during"]["complete"]
    after = status.read(run)
    assert after["writer"] is None and after["complete"] and after["done"] == after["total"] == 12
    assert after["models"]["m1"] == {"total": 6, "done": 6, "generations": {"ok": 6}, "verdicts": {"correct": 6}}


def test_status_counts_attempts_of_several_turns_once(tmp_path, capsys):
    def three_turns(key, history):
        return None if len(history) == 3 else [{"role": "user", "content": f"turn {len(history)}"}]

    run, settings = tmp_path / "run", stubs.settings(agent=AgentConfig(max_turns=3))
    backend = stubs.Backend(lambda job, node: Verdict.MISMATCH)
    stubs.sweep(run, settings, stubs.Generator(), backend, conversation=three_turns)
    found = status.read(run)
    assert found["complete"] and (found["done"], found["total"]) == (12, 12)
    assert found["models"]["m1"]["done"] == 6 and found["models"]["m1"]["verdicts"] == {"mismatch": 18}
    status.show(found)
    assert "12 of 12 attempts judged, complete" in capsys.readouterr().out


def test_status_counts_what_has_no_outcome(tmp_path):
    faults = {("m1", stubs.PROBLEMS[0], 0): [GenerationStatus.PROVIDER_ERROR]}
    stubs.sweep(
        tmp_path / "run", stubs.settings(), stubs.Generator(faults=faults), stubs.Backend(lambda job, node: Verdict.CORRECT)
    )
    found = status.read(tmp_path / "run")
    assert not found["complete"] and found["done"] == 11
    assert found["models"]["m1"]["generations"] == {"ok": 5, "provider_error": 1}


def test_no_run_directory(tmp_path):
    with pytest.raises(UserError, match="no run directory"):
        status.read(tmp_path)
