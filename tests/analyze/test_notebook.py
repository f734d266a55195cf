"""The notebook runs as it stands, and its figure has the numbers of the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pkb.analyze.tables import tables
from tests.analyze.demo import write_demo

NOTEBOOK = Path(__file__).parents[2] / "docs" / "analysis.ipynb"


def test_the_notebook_goes_from_parquet_to_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel (pip install -e '.[test]')")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel (pip install -e '.[test]')")
    run = write_demo(tmp_path / "run")
    monkeypatch.setenv("PKB_RUN", str(run))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not c.get("outputs") for c in notebook.cells), "commit the notebook without outputs"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[-1].outputs
    drawn = json.loads(json.dumps(output["data"]["application/vnd.plotly.v1+json"]))["data"]
    wanted = tables([run]).curves
    for line in drawn:
        mine = {r["p"]: r["value"] for r in wanted.iter_rows(named=True) if r["model"] == line["name"] and r["k"] == 3}
        assert line["y"] == pytest.approx([mine[p] for p in line["x"]])
    assert len(drawn) == 3
