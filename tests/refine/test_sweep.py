"""The whole loop with recorded answers: ``pkb sweep --config refine``, on real ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pkb.analyze import turns
from pkb.store import reader

ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    "evaluation.limits.call_seconds=4",
    "evaluation.timing.iterations=10",
    "evaluation.timing.blocks=4",
    "evaluation.timing.warmup=20",
]


def command(run, *overrides):
    return [sys.executable, "-m", "pkb", "sweep", "--config", "refine", f"run_dir={run}", *QUICK, *overrides]


def environment(tmp_path):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def verdicts(run):
    frame = reader.scan(run, "evaluations").select("problem", "turn", "verdict", "extra").collect().sort("problem", "turn")
    found = {}
    for row in frame.iter_rows(named=True):
        assert (row["problem"], row["turn"]) not in found, "a row twice"
        found[row["problem"], row["turn"]] = (row["verdict"], json.loads(row["extra"]))
    return found


@pytest.mark.slow
def test_the_recorded_refinement_runs_as_its_readme_says_also_when_it_is_killed_between_turns(tmp_path):
    run = tmp_path / "run"
    first = subprocess.Popen(
        command(run), env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(_rows(run)) < 4:
        assert first.poll() is None and time.monotonic() < deadline, "no turn was judged"
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = {(r["problem"], r["turn"]) for r in _rows(run, "generations")}
    done = subprocess.run(command(run), env=environment(tmp_path), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = verdicts(run)
    path = lambda problem: [found[problem, t][0] for t in range(4) if (problem, t) in found]  # noqa: E731
    assert path("001_allreduce")[0] == "mismatch" and path("001_allreduce")[1] in ("nondeterministic", "mismatch")
    assert path("001_allreduce")[2:] == ["correct", "correct"]
    assert path("002_allgather") == ["compile_error", "mismatch", "correct", "compile_error"]
    assert path("003_broadcast") == ["deadlock", "no_code", "correct", "deadlock"]
    assert path("004_reduce") == ["mismatch"] * 4
    assert found["004_reduce", 3][1]["ended"]["rule"] == "turns" and found["004_reduce", 1][1]["repeats"] == 0
    finals = [key for key, (verdict, extra) in found.items() if extra.get("final")]
    assert {problem for problem, _ in finals} == {"001_allreduce", "002_allgather", "003_broadcast"}
    answers = _rows(run, "generations")
    assert len({(r["problem"], r["turn"]) for r in answers}) == len(answers) == 16
    assert before <= {(r["problem"], r["turn"]) for r in answers}
    _analysis(run)


def _analysis(run):
    """The curves and transitions of the report are made of these rows."""
    rows, answers = reader.scan(run, "evaluations"), reader.scan(run, "generations")
    curve = turns.turn_curves(rows, answers).filter(metric="pass@1").sort("turns")
    assert curve["value"].to_list() == [0.0, 0.0, 0.75, 0.75]
    pairs = {(r["verdict"], r["following"]): r["count"] for r in turns.transitions(rows).to_dicts()}
    assert pairs["deadlock", "no_code"] == pairs["compile_error", "mismatch"] == pairs["no_code", "correct"] == 1


def _rows(run, table="evaluations"):
    if not (run / table).is_dir():
        return []
    return reader.scan(run, table).select("problem", "turn").collect().to_dicts()
