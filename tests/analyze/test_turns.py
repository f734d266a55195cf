"""What refinement bought, and which mechanisms were used."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pkb.analyze import report
from pkb.analyze.runs import evaluations, generations
from pkb.analyze.shares import mechanism_shares
from pkb.analyze.turns import gains, open_ends, transitions, turn_curves
from pkb.config import AgentConfig, Config
from tests.analyze.rows import evaluation, write_run

CONVERSATIONS = {  # verdict and speedup, turn by turn
    ("001_allreduce", 0): [("compile_error", None), ("mismatch", None), ("correct", 0.8), ("correct", 2.0)],
    ("001_allreduce", 1): [("correct", 3.0)],
    ("002_allgather", 0): [("mismatch", None), ("mismatch", None)],
    ("002_allgather", 1): [("mismatch", None), ("harness_error", None)],
}


def run_of(tmp_path: Path) -> Path:
    rows = [
        evaluation("m", problem, attempt, verdict, speedup, turn=turn)
        for (problem, attempt), turns in CONVERSATIONS.items()
        for turn, (verdict, speedup) in enumerate(turns)
    ]
    return write_run(tmp_path / "run", rows)


def test_each_point_of_the_curve_is_over_the_same_attempts(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    curve = turn_curves(evaluations(run), generations(run))
    by_metric = {m: curve.filter(pl.col("metric") == m).sort("turns") for m in ("pass@1", "fast1@1")}
    # 001: one of two attempts is right after a turn, both after three; 002: its one counted attempt never is
    assert by_metric["pass@1"]["value"].to_list() == pytest.approx([0.25, 0.25, 0.5, 0.5])
    assert by_metric["fast1@1"]["value"].to_list() == pytest.approx([0.25, 0.25, 0.25, 0.5])
    assert by_metric["pass@1"]["cost_usd"].to_list() == pytest.approx([0.04, 0.07, 0.08, 0.09])


def test_transitions_count_consecutive_turns(tmp_path: Path) -> None:
    rows = transitions(evaluations(run_of(tmp_path))).select("verdict", "following", "count").rows()
    assert set(rows) == {
        ("compile_error", "mismatch", 1),
        ("mismatch", "correct", 1),
        ("correct", "correct", 1),
        ("mismatch", "mismatch", 1),
        ("mismatch", "harness_error", 1),
    }


def test_gains_say_what_a_turn_added_what_that_cost_and_where_nothing_came_any_more(tmp_path: Path) -> None:
    solved_late = {
        ("001_allreduce", 0): ["mismatch", "correct"],
        ("002_allgather", 0): ["mismatch", "mismatch", "correct", "correct"],
    }
    never = {("003_broadcast", 0): ["mismatch"] * 4}
    rows = [
        evaluation("m", problem, attempt, verdict, 1.0 if verdict == "correct" else None, turn=turn)
        for (problem, attempt), verdicts in {**solved_late, **never}.items()
        for turn, verdict in enumerate(verdicts)
    ]
    run = write_run(tmp_path / "run", rows)
    found = gains(evaluations(run), generations(run)).drop("run", "model")
    assert found.select("turns", "solved", "added", "plateau").rows() == [
        (1, 0, 0, 3),
        (2, 1, 1, 3),
        (3, 2, 1, 3),
        (4, 2, 0, 3),
    ]
    assert found["cost_per_added"].to_list() == [None, pytest.approx(0.03), pytest.approx(0.02), None]


def test_single_turns_have_no_curve(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [evaluation("m", "001_allreduce", 0, "correct", 2.0)])
    assert turn_curves(evaluations(run), generations(run)).is_empty()
    assert gains(evaluations(run), generations(run)).is_empty()


REFINED = Config(agent=AgentConfig(max_turns=4))


def test_the_terminal_shows_the_turns_that_changed_something_and_the_plateau(tmp_path: Path) -> None:
    solved_late = [("001_allreduce", ["mismatch", "correct", "mismatch", "mismatch"]), ("002_allgather", ["mismatch"] * 4)]
    ended = json.dumps({"ended": {"rule": "turns"}, "final": True})
    rows = [
        evaluation("m", p, 0, v, 2.0 if v == "correct" else None, turn=t, extra=ended if v == "correct" or t == 3 else "{}")
        for p, verdicts in solved_late
        for t, v in enumerate(verdicts)
    ]
    text = report.render([write_run(tmp_path / "run", rows, config=REFINED)]) or ""
    shown = [line.split("│")[1:-1] for line in text[text.index("What further turns bought") :].splitlines() if "│ m" in line]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["m", "1", "0 %", "0 %", "0", "$0.02", "-"],
        ["m", "2", "50 %", "50 %", "1 (+1)", "$0.04", "$0.02"],
        ["m", "4", "50 %", "50 %", "1", "$0.08", "-"],
    ]
    assert "no further problem solved after turn 2 of 4" in text and "not over" not in text


def test_single_turns_have_no_table_of_turns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [evaluation("m", "001_allreduce", 0, "correct", 2.0)])
    assert "further turns" not in (report.render([run]) or "")


def test_attempts_that_a_stopped_session_left_open_are_said_to_be_so(tmp_path: Path) -> None:
    over = json.dumps({"ended": {"rule": "turns"}})
    rows = [
        evaluation("m", "001_allreduce", 0, "mismatch", turn=0),
        evaluation("m", "001_allreduce", 1, "correct", 2.0, turn=0),
        evaluation("m", "001_allreduce", 1, "mismatch", turn=1, extra=over),
        evaluation("m", "002_allgather", 0, "correct", 2.0, turn=0, extra=json.dumps({"final": True})),
        evaluation("m", "002_allgather", 0, "mismatch", turn=1, extra=over),
    ]
    run = write_run(tmp_path / "run", rows, config=REFINED)
    first, second = open_ends(evaluations(run))
    assert first.startswith("m: 1 attempts are not over") and second.startswith("m: 1 results were judged only once")
    assert {first, second} <= set(json.loads(report.render([run], "json") or "")["notes"])


def test_mechanisms_are_shares_of_what_was_recorded(tmp_path: Path) -> None:
    def told(kind: str) -> str:
        return json.dumps({"mechanism": {"primary": kind, "used": [kind]}})

    rows = [
        evaluation("m", "001_allreduce", 0, "correct", 2.0, extra=told("nvls")),
        evaluation("m", "001_allreduce", 1, "mismatch", extra=told("load/store")),
        evaluation("m", "001_allreduce", 2, "mismatch", extra=told("load/store")),
        evaluation("m", "001_allreduce", 3, "no_code", extra="{}"),
    ]
    found = mechanism_shares(evaluations(write_run(tmp_path / "run", rows)))
    assert found.select("mechanism", "candidates", "correct").rows() == [("load/store", 2, 0), ("nvls", 1, 1)]
    assert found["share"].to_list() == pytest.approx([2 / 3, 1 / 3])
