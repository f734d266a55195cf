"""Intervals cover what they should, pair what is paired, and claim nothing where nothing is known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pkb.analyze.bootstrap import LEAST_PROBLEMS, differences, estimates, resamples


def table(values: dict[str, list[float | None]], categories: list[str] | None = None) -> pl.DataFrame:
    """One row per model and problem with ``value``."""
    rows = [
        {"run": "r", "model": model, "problem": f"p{i:03d}", "category": categories[i] if categories else "c", "value": value}
        for model, column in values.items()
        for i, value in enumerate(column)
    ]
    return pl.DataFrame(rows, schema_overrides={"value": pl.Float64})


def interval(frame: pl.DataFrame) -> tuple[float, float]:
    row = estimates(frame, {"value": ("value", None)}).row(0, named=True)
    return row["low"], row["high"]


def test_resamples_keep_the_size_of_every_category() -> None:
    categories = ["a"] * 5 + ["b"] * 3
    weights = resamples(categories, 500)
    assert weights.shape == (500, 8)
    assert (weights[:, :5].sum(axis=1) == 5).all() and (weights[:, 5:].sum(axis=1) == 3).all()
    assert weights.std(axis=0).min() > 0
    assert (weights == resamples(categories, 500)).all()


def test_categories_of_one_problem_vary_together() -> None:
    weights = resamples(["a", "b", "c", "d", "d", "d"], 500)
    assert (weights[:, :3].sum(axis=1) == 3).all()
    assert weights[:, :3].std(axis=0).min() > 0
    lone = resamples(["a", "d", "d", "d", "e", "e"], 500)  # a joins e, the smallest other one
    assert (lone[:, [0, 4, 5]].sum(axis=1) == 3).all() and lone[:, 0].std() > 0


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    problems, experiments, truth = 80, 200, 0.4
    draws = rng.random((experiments, problems)) < truth
    covered = sum(low <= truth <= high for low, high in (interval(table({"m": row.astype(float).tolist()})) for row in draws))
    assert 0.89 <= covered / experiments <= 0.99


def test_differences_between_categories_are_no_uncertainty() -> None:
    """All the spread lies between categories: stratified resampling sees none, resampling across them would see much."""
    values: list[float | None] = [1.0] * 10 + [0.0] * 10
    assert interval(table({"m": values}, ["easy"] * 10 + ["hard"] * 10)) == (0.5, 0.5)
    low, high = interval(table({"m": values}))
    assert high - low > 0.3


def test_equal_models_do_not_differ() -> None:
    rng = np.random.default_rng(1)
    values = rng.random(30).tolist()
    row = differences(table({"a": values, "b": values}), "value").row(0, named=True)
    assert (row["model"], row["other"], row["value"], row["low"], row["high"]) == ("a", "b", 0.0, 0.0, 0.0)


def test_pairing_sees_what_separate_intervals_hide() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(40)
    frame = table({"a": base.tolist(), "b": (base - 0.05).tolist()})
    rows = estimates(frame, {"value": ("value", None)}).rows(named=True)
    assert rows[0]["low"] < rows[1]["high"], "their own intervals overlap"
    paired = differences(frame, "value").row(0, named=True)
    assert paired["low"] == pytest.approx(0.05) and paired["high"] == pytest.approx(0.05)


def test_differences_are_over_problems_that_both_have() -> None:
    frame = table({"a": [1.0, 1.0, None, 0.0], "b": [0.0, 1.0, 1.0, None]})
    row = differences(frame, "value").row(0, named=True)
    assert row["value"] == 0.5 and row["problems"] == 2


def test_models_of_different_runs_are_compared_only_when_asked() -> None:
    frame = pl.concat([table({"b": [1.0] * 6, "a": [0.0] * 6}), table({"a": [0.5] * 6}).with_columns(run=pl.lit("s"))])
    within = differences(frame, "value").select("run", "model", "other_run", "other", "value").rows()
    assert within == [("r", "a", "r", "b", -1.0)]
    across = differences(frame, "value", across=True).select("run", "model", "other_run", "other", "value").rows()
    assert across == [("r", "a", "r", "b", -1.0), ("r", "a", "s", "a", -0.5), ("r", "b", "s", "a", 0.5)]


def test_few_problems_support_no_interval() -> None:
    few = estimates(table({"m": [1.0, 0.0] * 2}), {"value": ("value", None)}).row(0, named=True)
    assert few["value"] == 0.5 and few["low"] is None and few["problems"] == 4 < LEAST_PROBLEMS
    none = estimates(table({"m": [None, None]}), {"value": ("value", None)}).row(0, named=True)
    assert none["value"] is None and (none["problems"], none["dropped"]) == (0, 2)


def test_missing_values_leave_the_mean_and_are_counted() -> None:
    row = estimates(table({"m": [1.0, 0.0, None, 1.0, 1.0, 0.0]}), {"value": ("value", None)}).row(0, named=True)
    assert row["value"] == pytest.approx(0.6) and (row["problems"], row["dropped"]) == (5, 1)
    assert row["low"] < 0.6 < row["high"]


def test_a_ratio_weighs_problems_by_what_they_hold() -> None:
    frame = table({"m": [1.0] * 6}).with_columns(pl.Series("count", [1, 1, 1, 1, 1, 5]), pl.Series("total", [0.0] * 5 + [10.0]))
    row = estimates(frame, {"ratio": ("total", "count")}).row(0, named=True)
    assert row["value"] == pytest.approx(1.0)
