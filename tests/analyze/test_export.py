"""The exported data set loads with other tools, holds every row, and cannot change its columns unnoticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml

from pkb.analyze import evaluations as evaluations_of
from pkb.analyze import export as exports
from pkb.analyze import pass_at_k
from pkb.analyze.report import render
from pkb.analyze.tables import tables
from pkb.errors import UserError
from pkb.store.schema import READABLE_VERSIONS, SCHEMA_VERSION, TABLES
from tests.analyze.demo import MODELS, PROBLEMS, write_demo
from tests.analyze.rows import write_run

#: The columns of every table, by schema version. A change of columns is a new version: add a line, never edit one.
FROZEN = {1: "d048bcd9d60f"}


def test_a_change_of_columns_is_a_new_version() -> None:
    text = "\n".join(f"{table} {f.name} {f.type} {f.nullable}" for table, schema in exports.SCHEMAS.items() for f in schema)
    assert FROZEN[SCHEMA_VERSION] == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert set(FROZEN) == set(READABLE_VERSIONS), "older versions stay readable"


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_run_of_every_readable_version_is_read(version: int) -> None:
    """runs/vN is a run as schema version N wrote it; it stays as it is."""
    found = tables([Path(__file__).parent / "runs" / f"v{version}"])
    assert found.counts.select("model", "attempted", "correct", "fast").rows() == [("a", 3, 2, 1), ("b", 1, 0, 0)]
    assert found.counts["cost_usd"].to_list() == pytest.approx([0.03, 0.01])
    assert found.notes == ()


def test_it_loads_with_polars_and_pyarrow(tmp_path: Path) -> None:
    run = write_demo(tmp_path / "run")
    exports.export(run, tmp_path / "out")
    for table in ("generations", "evaluations"):
        loaded = pl.read_parquet(tmp_path / "out" / table / "*.parquet")
        arrow = ds.dataset(tmp_path / "out" / table, format="parquet").to_table()
        assert arrow.schema.remove_metadata().equals(exports.SCHEMAS[table])
        assert loaded.equals(pl.read_parquet(run / table / "*.parquet"))
        assert arrow.num_rows == loaded.height
    problems = pl.read_parquet(tmp_path / "out" / "problems" / "*.parquet")
    assert problems["problem"].to_list() == sorted(PROBLEMS)
    assert problems["reference"].str.contains("def solution").all()
    exported = pl.scan_parquet(tmp_path / "out" / "evaluations" / "*.parquet")
    assert pass_at_k(exported, 3).equals(pass_at_k(evaluations_of(run), 3))


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    exports.export(write_demo(tmp_path / "run"), tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert {c["config_name"]: c["data_files"] for c in front["configs"]} == {
        t: f"{t}/*.parquet" for t in ("problems", "generations", "evaluations")
    }
    for config in front["configs"]:
        assert list((tmp_path / "out").glob(config["data_files"]))
    assert all(model in text for model in MODELS)
    assert "Apache-2.0" in text and "| verdict | string | no |" in text


def test_nothing_of_the_machine_is_published(tmp_path: Path) -> None:
    run = write_demo(tmp_path / "run")
    described = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    described["config"]["run_dir"] = "/home/somebody/secret-project"
    described["sessions"] = [{"command": "sweep run_dir=/home/somebody/secret-project", "torch": "2.13.0"}]
    described["models"] = [{"name": "m", "api_base": "http://inside.example:8000", "key_env": "INSIDE_KEY", "max_tokens": 5}]
    described["models"][0]["imported"] = "/home/somebody/secret-project/kernels"
    (run / "run.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    exports.export(run, tmp_path / "out")
    render([run], "html", tmp_path / "page.html")
    for file in (tmp_path / "out" / "run.yaml", tmp_path / "page.html"):
        text = file.read_text(encoding="utf-8")
        assert "secret-project" not in text and "inside.example" not in text and "INSIDE_KEY" not in text
    kept = yaml.safe_load((tmp_path / "out" / "run.yaml").read_text(encoding="utf-8"))
    assert kept["sessions"] == [{"torch": "2.13.0"}] and kept["models"] == [{"name": "m", "max_tokens": 5}]
    assert kept["config"]["attempts"] == 3


def test_large_tables_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "ROWS_PER_FILE", 40)
    monkeypatch.setattr(exports, "_BATCH", 20)
    run = write_demo(tmp_path / "run")
    exports.export(run, tmp_path / "out")
    parts = sorted((tmp_path / "out" / "evaluations").glob("*.parquet"))
    assert len(parts) > 1
    assert pl.concat(map(pl.read_parquet, parts)).equals(pl.read_parquet(run / "evaluations" / "*.parquet"))


def test_an_empty_run_is_a_data_set_too(tmp_path: Path) -> None:
    exports.export(write_run(tmp_path / "run", []), tmp_path / "out")
    assert pl.read_parquet(tmp_path / "out" / "evaluations" / "*.parquet").height == 0


def test_it_never_writes_over_anything(tmp_path: Path) -> None:
    run = write_demo(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="name a new folder"):
        exports.export(run, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exports, "card", full)
    with pytest.raises(UserError, match="No space left"):
        exports.export(write_demo(tmp_path / "run"), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_what_is_missing_is_said_in_the_card(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    run = write_demo(tmp_path / "run")
    (run / "evaluations" / "part-000001.parquet").rename(run / "evaluations" / "part-000002.parquet")
    notes = exports.export(run, tmp_path / "out")
    assert [n for n in notes if "part-000001.parquet is missing" in n]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- run/evaluations/part-000001.parquet is missing" in card and str(tmp_path) not in card
    render([run], "html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"run/evaluations/part-000001.parquet is missing' in page and str(tmp_path) not in page
    assert not recwarn.list


def test_a_table_without_rows_has_no_empty_row_group(tmp_path: Path) -> None:
    exports.export(write_run(tmp_path / "run", []), tmp_path / "out")
    (part,) = (tmp_path / "out" / "evaluations").iterdir()
    assert pq.read_metadata(part).num_row_groups == 0
    assert pl.read_parquet(part).columns == TABLES["evaluations"].names


def test_a_data_set_is_reported_like_its_run(tmp_path: Path) -> None:
    run = write_demo(tmp_path / "run", turns=3)
    exports.export(run, tmp_path / "out")
    mine, theirs = (json.loads(render([p], "json") or "") for p in (run, tmp_path / "out"))
    assert (
        theirs["headline"] == mine["headline"]
        and theirs["counts"] == mine["counts"]
        and theirs["mechanisms"] == mine["mechanisms"]
    )
