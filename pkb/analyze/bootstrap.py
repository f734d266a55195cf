"""Intervals: a bootstrap over problems, stratified by category, the same resamples for every model.

Problems are the clusters: attempts at one problem are alike, so resampling attempts would promise too much. One set of
resamples serves all models, so that differences between models are paired by problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

RESAMPLES = 2000
#: Fewer problems than this cannot support a 95 % interval: it is null.
LEAST_PROBLEMS = 5
PERCENTILES = (2.5, 97.5)
_NUMBERS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    **dict.fromkeys(("problems", "dropped"), pl.Int64),
}


def estimates(
    table: pl.DataFrame, metrics: Mapping[str, tuple[str, str | None]], by: Sequence[str] = (), long: bool = False
) -> pl.DataFrame:
    """Means over problems with 95 % percentile intervals, per (run, model, *by).

    table: one row per (run, model, problem) with ``category``. metrics: name -> (numerator column, denominator column); the
    estimate is sum(numerator) / sum(denominator), over rows where both are given. A denominator of None counts each problem
    once: a plain mean that leaves nulls out.
    Returns run, model, *by, value, low, high, problems (that entered), dropped (that were null); with ``long`` (several
    metrics) also ``metric``. Rows are sorted. Nothing depends on the order of the rows given.
    """
    keys = ["run", *by]
    found: dict[str, list[Any]] = {name: [] for name in (*keys, "model", "metric", *_NUMBERS)}
    for key, group in table.sort([*keys, "model", "problem"]).group_by(keys, maintain_order=True):
        models, weights, sums, counts = _dense(group, list(metrics.values()))
        columns = _intervals(weights, np.hstack(sums), np.hstack(counts))  # metric by metric, model by model
        for name, value in (*zip(keys, key, strict=True), *columns.items()):
            found[name] += [value] * len(models) * len(metrics) if name in keys else value
        found["model"] += models * len(metrics)
        found["metric"] += [metric for metric in metrics for _ in models]
    schema: dict[str, Any] = {**{k: table.schema[k] for k in (*keys, "model")}, "metric": pl.String, **_NUMBERS}
    order = ["run", "model", *by, *(["metric"] if long else []), *_NUMBERS]
    return pl.DataFrame(found, schema=schema).select(order).sort("run", "model", *by, maintain_order=True)


def differences(table: pl.DataFrame, metric: str, across: bool = False) -> pl.DataFrame:
    """Paired differences of a per-problem metric between every two models, over the problems that both have.

    Only models of one run are compared, or with ``across`` those of all runs: for runs that were measured alike.
    Returns run, model, other_run, other, value (model minus other), low, high, problems.
    """
    columns = ("run", "model", "other_run", "other")
    schema: dict[str, Any] = {**dict.fromkeys(columns, pl.String), **_NUMBERS}
    parts: list[pl.DataFrame] = []
    table = table.sort("run", "model", "problem")
    for group in [table] if across else table.partition_by("run", maintain_order=True):
        names = group.select("run", "model").unique(maintain_order=True).with_row_index("number")
        numbered = group.join(names, on=["run", "model"])
        numbered = numbered.with_columns(model=pl.col("number").cast(pl.String).str.zfill(6))  # sorts as the names do
        _, weights, (values,), (given,) = _dense(numbered, [(metric, None)])
        pairs = list(itertools.combinations(names.select("run", "model").rows(), 2))
        places = list(itertools.combinations(range(names.height), 2))
        if pairs:
            first, second = (list(side) for side in zip(*places, strict=True))
            both = given[:, first] * given[:, second]
            numbers = _intervals(weights, (values[:, first] - values[:, second]) * both, both)
            named = dict(zip(columns, map(list, zip(*((*a, *b) for a, b in pairs), strict=True)), strict=True))
            parts.append(pl.DataFrame({**named, **numbers}, schema=schema))
    return pl.concat([pl.DataFrame(schema=schema), *parts]).drop("dropped")


def resamples(categories: Sequence[str], count: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each problem is drawn in each resample: (count, problems), drawn with replacement within its category.

    A category of one problem would never vary and so claim certainty; such categories are pooled, as survey statistics does
    with single-unit strata, and a lone one joins the smallest other category.
    """
    rng = np.random.default_rng(seed)
    strata: dict[str, list[int]] = {}
    for i, category in enumerate(categories):
        strata.setdefault(category, []).append(i)
    single = sorted(c for c in strata if len(strata[c]) == 1)
    pooled = [i for c in single for i in strata.pop(c)]
    if len(pooled) == 1 and strata:
        pooled += strata.pop(min(strata, key=lambda c: (len(strata[c]), c)))
    groups = [strata[c] for c in sorted(strata)] + ([pooled] if pooled else [])
    weights = np.zeros((count, len(categories)))
    for members in groups:
        weights[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), size=count)
    return weights


def _dense(
    group: pl.DataFrame, metrics: Sequence[tuple[str, str | None]]
) -> tuple[list[str], np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Models, resamples, and for each metric (problems, models) sums and counts, zero where a value is missing."""
    problems = group.select("problem", "category").unique().sort("problem")
    models = group.select(pl.col("model").unique().sort())
    grid = problems.select("problem").join(models, how="cross", maintain_order="left_right")
    full = grid.join(group, on=["problem", "model"], how="left", maintain_order="left")
    names = list(dict.fromkeys(c for pair in metrics for c in pair if c is not None))
    matrix = full.select(pl.col(names).cast(pl.Float64)).to_numpy()  # null becomes nan
    columns = {name: matrix[:, i].reshape(problems.height, models.height) for i, name in enumerate(names)}
    sums, counts = [], []
    for numerator, denominator in metrics:
        above = columns[numerator]
        below = columns[denominator] if denominator else np.ones_like(above)
        present = ~(np.isnan(above) | np.isnan(below))
        sums.append(np.where(present, above, 0.0))
        counts.append(np.where(present, below, 0.0))
    return models["model"].to_list(), resamples(problems["category"].to_list()), sums, counts


def _intervals(weights: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> dict[str, list[Any]]:
    """The columns of _NUMBERS, one entry per column of ``sums``; None where a number is not defined."""
    entered = (counts > 0).sum(axis=0)
    enough = entered >= LEAST_PROBLEMS
    low = np.full(sums.shape[1], np.nan)
    high = low.copy()
    with np.errstate(invalid="ignore", divide="ignore"):
        value = sums.sum(axis=0) / counts.sum(axis=0)
        drawn = (weights @ sums[:, enough]) / (weights @ counts[:, enough])  # nan where a draw holds no problem with a value
    if enough.any():
        empty = np.isnan(drawn).any()
        low[enough], high[enough] = (np.nanpercentile if empty else np.percentile)(drawn, PERCENTILES, axis=0)
    defined = {
        name: [None if np.isnan(x) else float(x) for x in a] for name, a in (("value", value), ("low", low), ("high", high))
    }
    return {**defined, "problems": entered.tolist(), "dropped": (len(sums) - entered).tolist()}
