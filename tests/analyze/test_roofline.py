"""Bounds by hand for one problem, and utilisation from recorded times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from pkb import hardware, problem
from pkb.analyze.roofline import bound, machine_of, roofline
from pkb.analyze.runs import evaluations, open_run
from pkb.config import Config
from pkb.errors import UserError
from pkb.problem import Cost
from tests.analyze.rows import evaluation, write_run

H200 = hardware.load("h200")


@pytest.mark.parametrize(
    ("cost", "binding", "milliseconds"),
    [  # of an H200: 450 GB/s to the peers, 989.4 TFLOP/s in bfloat16, 4.8 TB/s to its memory
        (Cost(sent_bytes=0.9e9, flops=1e9, memory_bytes=1e9, footprint_bytes=0), "interconnect", 2.0),
        (Cost(sent_bytes=1e6, flops=2.9682e12, memory_bytes=1e9, footprint_bytes=0), "compute", 3.0),
        (Cost(sent_bytes=1e6, flops=1e9, memory_bytes=24e9, footprint_bytes=0), "memory", 5.0),
    ],
)
def test_the_slowest_resource_sets_the_bound(
    monkeypatch: pytest.MonkeyPatch, cost: Cost, binding: str, milliseconds: float
) -> None:
    spec = dataclasses.replace(problem.load("001_allreduce"), cost=lambda shape: cost)
    monkeypatch.setattr(problem, "load", lambda name: spec)
    found = bound("001_allreduce", 8, "default", "bfloat16", H200)
    assert (found.binding, found.bound_ms) == (binding, pytest.approx(milliseconds))


def test_changed_dimensions_count() -> None:
    small = bound("001_allreduce", 8, "production M=1024", "bfloat16", H200)
    assert small.bound_ms == pytest.approx(bound("001_allreduce", 8, "production", "bfloat16", H200).bound_ms / 16)


def test_utilisation_and_headroom(tmp_path: Path) -> None:
    shape = {"device": "cuda", "world_size": 8, "size": "production"}
    times = [(2.0, 1.0), (4.0, 2.0), (3.0, 1.5)]  # reference and candidate, milliseconds
    rows = [
        evaluation("m", "001_allreduce", a, "correct", r / c, reference_ms=r, candidate_ms=c, **shape)
        for a, (r, c) in enumerate(times)
    ]
    rows.append(evaluation("m", "001_allreduce", 3, "mismatch", **shape))
    rows.append(evaluation("m", "001_allreduce", 4, "correct", 9.0, candidate_ms=0.1, shared_device=True, **shape))
    run = open_run(write_run(tmp_path / "run", rows, config=Config(device="cuda", ranks=8)))
    assert machine_of(run).name == "h200"
    references, candidates, notes = roofline(run, evaluations(run))
    least = bound("001_allreduce", 8, "production", "bfloat16", H200).bound_ms
    assert notes == []
    assert references["reference_ms"].to_list() == [3.0]
    assert references["utilisation"].item() == pytest.approx(least / 3.0)
    assert references["headroom"].item() == pytest.approx(3.0 / least)
    assert candidates["attempt"].to_list() == [0, 1, 2]
    assert candidates["utilisation"].to_list() == pytest.approx([least / c for _, c in times])


def test_what_has_no_bound_is_named(tmp_path: Path) -> None:
    rows = [evaluation("m", "099_unknown", 0, "correct", 2.0), evaluation("m", "001_allreduce", 0, "correct", 2.0, size="gone")]
    run = open_run(write_run(tmp_path / "run", rows))
    references, candidates, notes = roofline(run, evaluations(run))
    assert references.is_empty() and candidates.is_empty()
    assert len(notes) == 2 and "099_unknown" in notes[1] and "no size 'gone'" in notes[0]


def test_a_run_on_unknown_hardware_has_no_roofline(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", [evaluation("m", "001_allreduce", 0, "correct", 2.0)]))
    object.__setattr__(run, "meta", {"config": {"prompt": {"hardware": "abacus"}}})
    with pytest.raises(UserError, match="no hardware profile"):
        machine_of(run)
    assert isinstance(roofline(run, evaluations(run))[0], pl.DataFrame)
    assert "no roofline for run" in roofline(run, evaluations(run))[2][0]
