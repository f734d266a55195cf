"""The tables: the published counts come out, denominators are stated, runs stay side by side."""

from __future__ import annotations

import csv
import json
import shutil
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pkb.analyze import drilldown
from pkb.analyze.report import render
from pkb.analyze.tables import print_summary, summary, tables
from pkb.config import Config, PromptConfig
from pkb.errors import UserError
from pkb.store.schema import EVALUATIONS
from tests.analyze.rows import evaluation, generation, table, write_run

PAPER = Path(__file__).parent / "paper_table.csv"
TOTALS = {
    "GPT-5.5": (28, 36, 22, 30),
    "Claude Opus 4.7": (20, 31, 12, 20),
    "Gemini 3 Pro": (24, 30, 12, 18),
    "GLM-5.1": (6, 7, 2, 3),
    "DeepSeek V4 Pro": (2, 3, 0, 1),
}


def published() -> list[dict[str, object]]:
    """Three attempts a problem whose best of 1 and best of 3 are the paper's counts, category by category."""
    rows, offset = [], defaultdict(int)
    with PAPER.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            model, category, problems = line["model"], line["category"], int(line["problems"])
            solved, fast = ((int(line[f"{m}_at_1"]), int(line[f"{m}_at_3"])) for m in ("pass", "fast1"))
            for i in range(problems):
                for attempt in range(3):
                    verdict = "correct" if i < solved[attempt > 0] else "mismatch"
                    speedup = (2.0 if i < fast[attempt > 0] else 0.5) if verdict == "correct" else None
                    rows.append(evaluation(model, f"{category} {i}", attempt, verdict, speedup))
            offset[model] += problems
    assert set(offset.values()) == {86}  # the paper's category sizes; it has 87 problems
    return rows


def test_the_published_counts_come_out(tmp_path: Path) -> None:
    found = tables([write_run(tmp_path / "paper", published())])
    value = {(r["model"], r["metric"]): r["value"] * r["problems"] for r in found.headline.iter_rows(named=True) if r["value"]}
    for model, wanted in TOTALS.items():
        got = [value.get((model, m), 0.0) for m in ("best@1", "best@3", "fastbest@1", "fastbest@3")]
        assert got == pytest.approx(wanted, abs=1e-9)
        # with three attempts the unbiased estimator at k=3 is the best of three
        assert [value.get((model, m), 0.0) for m in ("pass@3", "fast1@3")] == pytest.approx([wanted[1], wanted[3]], abs=1e-9)


def test_denominators_are_stated(tmp_path: Path) -> None:
    problem = "001_allreduce"
    rows = [evaluation("m", problem, 0, "correct", 2.0), evaluation("m", problem, 1, "harness_error")]
    answers = [
        generation("m", problem, 0),
        generation("m", problem, 1),
        generation("m", problem, 2, status="provider_error", cost_usd=None),
        generation("m", problem, 3),
    ]
    config = Config(problems=["1"], attempts=5)
    run = write_run(tmp_path / "run", rows, answers, config)
    row = summary([run]).row(0, named=True)
    assert (row["planned"], row["attempted"], row["missing_provider"], row["harness_errors"], row["pending"]) == (5, 1, 1, 1, 2)
    assert (row["correct"], row["harness_error"], row["mismatch"]) == (1, 1, 0)
    assert row["pass@1"] == 1.0 and row["pass@3"] is None
    assert row["cost_usd"] == pytest.approx(0.03) and row["cost_unknown"] == 1
    console = Console(record=True, width=120)
    print_summary(run, console)
    text = console.export_text()
    assert (
        "1 of 5 attempts counted, 1 missing because of the provider, 1 left out: the harness failed, 2 not judged yet" in text
    )
    assert "pass@3 leaves out 1 problem with too few attempts" in text


def test_unknown_cost_is_not_nothing(tmp_path: Path) -> None:
    rows = [evaluation("m", "001_allreduce", 0, "correct", 2.0)]
    run = write_run(tmp_path / "run", rows, [generation("m", "001_allreduce", 0, cost_usd=None)])
    assert summary([run])["cost_usd"].to_list() == [None]
    assert "unknown" in (render([run]) or "")


def test_runs_stand_side_by_side(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one", [evaluation("m", "001_allreduce", 0, "correct", 2.0)], name="same")
    second = write_run(tmp_path / "two", [evaluation("m", "001_allreduce", 0, "mismatch")], name="same")
    found = summary([first, second])
    assert found["run"].to_list() == ["same (one)", "same (two)"]
    assert found["pass@1"].to_list() == [1.0, 0.0]


def test_an_empty_run_is_a_table_without_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    assert summary([run]).height == 0
    assert json.loads(render([run], "json") or "")["headline"] == []


def test_json_is_versioned_and_strict(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [evaluation("m", "001_allreduce", a, "correct", 2.0) for a in range(3)])
    out = tmp_path / "report.json"
    assert render([run], "json", out) is None
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["report_version"] == 1
    rows = {r["metric"]: r for r in report["headline"]}
    assert rows["fast1@3"]["value"] == 1.0 and rows["fast1@3"]["problems"] == 1
    assert rows["fast1@3"]["low"] is None  # one problem supports no interval
    curve = {(r["k"], r["p"]): r["value"] for r in report["curves"]}
    assert curve[1, 1.9] == 1.0 and curve[1, 2.0] == 0.0


def three(model: str = "m") -> list[dict[str, object]]:
    return [evaluation(model, f"00{i}_x", 0, "correct", 2.0) for i in range(1, 4)]


def parts(run: Path, rows: list[dict[str, object]]) -> list[Path]:
    """The same run with one part per row."""
    folder = run / "evaluations"
    (folder / "part-000001.parquet").unlink()
    paths = [folder / f"part-{i:06d}.parquet" for i in range(1, len(rows) + 1)]
    for path, row in zip(paths, rows, strict=True):
        pq.write_table(table([row], EVALUATIONS), path)
    return paths


def test_a_truncated_part_is_named_and_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", three())
    broken = parts(run, three())[1]
    broken.write_bytes(broken.read_bytes()[:-20])
    found = tables([run])
    assert found.counts["attempted"].to_list() == [2]
    assert any("part-000002.parquet is damaged" in note for note in found.notes)
    assert "part-000002.parquet" in (render([run]) or "")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", three())
    parts(run, three())[1].unlink()
    found = tables([run])
    assert found.counts["attempted"].to_list() == [2]
    assert any("part-000002.parquet is missing" in note for note in found.notes)


def test_a_part_with_damaged_pages_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", three())
    broken = parts(run, three())[2]
    data = bytearray(broken.read_bytes())
    data[4:2000] = bytes(1996)
    broken.write_bytes(data)
    with pytest.raises(UserError, match=r"part-000003.parquet is damaged; move it away"):
        tables([run])


def test_another_schema_version_is_refused_by_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", three())
    path = run / "evaluations" / "part-000002.parquet"
    pq.write_table(table(three(), EVALUATIONS).replace_schema_metadata({"pkb.schema_version": "99"}), path)
    with pytest.raises(UserError, match="schema version 99"):
        tables([run])


def test_rows_of_several_settings_are_apart(tmp_path: Path) -> None:
    rows = [
        evaluation("m", "001_allreduce", 0, "correct", 2.0),
        evaluation("m", "001_allreduce", 1, "mismatch", policy="any"),
        evaluation("m", "001_allreduce", 2, "no_code", stage="extract", protocol=0),
    ]
    found = summary([write_run(tmp_path / "run", rows)])
    assert found.select("run", "attempted", "correct").rows() == [("r [any]", 1, 0), ("r [metadata]", 2, 1)]
    assert found["cost_usd"].to_list() == pytest.approx([0.01, 0.02])
    assert any("several settings (any; metadata)" in n for n in tables([tmp_path / "run"]).notes)


def test_runs_of_different_settings_say_so(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", three(), name="one")
    other = write_run(tmp_path / "two", three(), config=Config(ranks=4), name="two")
    found = tables([one, other])
    assert "the runs differ in world size: 2, 4" in found.notes
    assert found.differences.is_empty(), "what was measured differently is not compared"
    alike = write_run(tmp_path / "three", three(), name="three")
    assert tables([one, alike]).differences["value"].unique().to_list() in ([0.0], [0.0, None], [None, 0.0])


def test_a_provider_that_fails_mid_conversation_counts_against_nobody(tmp_path: Path) -> None:
    rows = [
        evaluation("m", "001_allreduce", 0, "mismatch"),
        evaluation("m", "001_allreduce", 1, "correct", 2.0),
        evaluation("m", "001_allreduce", 2, "mismatch"),
    ]
    answers = [generation("m", "001_allreduce", a) for a in range(3)]
    answers += [generation("m", "001_allreduce", a, turn=1, status="provider_error") for a in range(2)]
    row = summary([write_run(tmp_path / "run", rows, answers, Config(problems=["1"]))]).row(0, named=True)
    assert (row["attempted"], row["missing_provider"], row["correct"], row["pending"]) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: None, "no run directory"),
        (lambda p: p.mkdir(), "no run.yaml"),
        (lambda p: (p.mkdir(), (p / "run.yaml").write_text("a: [")), "is damaged"),
        (lambda p: (p.mkdir(), (p / "run.yaml").write_text("just text")), "no key 'config'"),
    ],
)
def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path / "run")  # type: ignore[operator]
    with pytest.raises(UserError, match=said) as caught:
        tables([tmp_path / "run"])
    assert "\n" not in str(caught.value)


def test_an_unknown_format_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="table, json"):
        render([tmp_path], "pdf")


def test_names_are_no_markup(tmp_path: Path) -> None:
    rows = [evaluation("[red]vendor[/red]/x", "001_allreduce", 0, "correct", 2.0)]
    assert "[red]vendor[/red]/x" in (render([write_run(tmp_path / "run", rows)]) or "")


def test_what_the_harness_lost_is_listed(tmp_path: Path) -> None:
    rows = [evaluation("m", "001_allreduce", a, "harness_error") for a in range(12)]
    answers = [generation("m", "001_allreduce", a) for a in range(12)]
    answers.append(generation("m", "002_allgather", 0, status="provider_error"))
    run = write_run(tmp_path / "run", rows, answers)
    report = json.loads(render([run], "json") or "")
    assert [(e["problem"], e["attempt"], e["reason"]) for e in report["excluded"]] == [
        *(("001_allreduce", a, "harness_error") for a in range(12)),
        ("002_allgather", 0, "provider_error"),
    ]
    text = " ".join((render([run]) or "").split())
    assert "the harness failed on m at 001_allreduce, attempt 0;" in text and "attempt 9; and 2 more" in text


def test_a_part_that_was_copied_is_counted_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", three())
    once = tables([run])
    shutil.copy(run / "evaluations" / "part-000001.parquet", run / "evaluations" / "part-000002.parquet")
    twice = tables([run])
    assert twice.headline.equals(once.headline) and twice.counts.equals(once.counts)
    assert "3 rows of evaluations repeat the key of another row; the last of each counts" in twice.notes
    listed = drilldown.listed(*drilldown.labelled(twice.runs))
    assert (listed.total, listed.index["attempt"].to_list(), listed.index["stands"].all()) == (3, [0, 0, 0], True)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -2.0, 0.0])
def test_what_is_no_ratio_is_no_speedup(tmp_path: Path, wrong: float) -> None:
    rows = [evaluation("m", "001_allreduce", 0, "correct", wrong, speedup_low=wrong)]
    report = json.loads(render([write_run(tmp_path / "run", rows)], "json") or "")
    values = {r["metric"]: r["value"] for r in report["headline"]}
    assert (values["pass@1"], values["fast1@1"], values["fast1_low@1"], values["speedup"]) == (1.0, 0.0, 0.0, None)


def test_runs_on_different_hardware_say_so(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", three(), config=Config(device="cuda"), name="one")
    b200 = Config(device="cuda", prompt=PromptConfig(hardware="b200"))
    found = tables([one, write_run(tmp_path / "two", three(), config=b200, name="two")])
    assert found.notes == ("the runs differ in hardware: h200, b200",)
    assert found.differences.is_empty()


def test_what_rows_say_of_their_setting_goes_before_the_configuration(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", three(), name="one")
    other = write_run(tmp_path / "two", [r | {"protocol": 2, "world_size": 8} for r in three()], name="two")
    assert tables([one, other]).notes == ("the runs differ in world size: 2, 8", "the runs differ in protocol: 1, 2")
