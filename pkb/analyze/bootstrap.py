"""Intervals: a bootstrap over problems, stratified by category, the same resamples for every model.

Problems are the clusters: attempts at one problem are alike, so resampling attempts would promise too much. One set of
resamples serves all models, so that differences between models are paired by problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

RESAMPLES = 2000
#: Fewer problems than this cannot support a 95 % interval: it is null.
LEAST_PROBLEMS = 5
PERCENTILES = (2.5, 97.5)


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
    parts: list[pl.DataFrame] = []
    for key, group in table.sort([*keys, "model", "problem"]).group_by(keys, maintain_order=True):
        weights = resamples(group.select("problem", "category").unique().sort("problem")["category"].to_list())
        for name, (numerator, denominator) in metrics.items():
            sums, counts = _matrices(group, numerator, denominator)
            part = _interval(weights, sums, counts).with_columns(
                model=pl.Series(group["model"].unique().sort()),
                **{k: pl.lit(v, table.schema[k]) for k, v in zip(keys, key, strict=True)},
                metric=pl.lit(name),
            )
            parts.append(part)
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        **{k: table.schema[k] for k in ("run", "model", *by)},
        **dict.fromkeys(("value", "low", "high"), pl.Float64),
        **dict.fromkeys(("problems", "dropped"), pl.Int64),
    }
    columns = ["run", "model", *by, *(["metric"] if long else []), "value", "low", "high", "problems", "dropped"]
    if not parts:
        return pl.DataFrame(schema={**schema, "metric": pl.String}).select(columns)
    return pl.concat(parts).select(columns).sort("run", "model", *by, maintain_order=True)


def differences(table: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Paired differences of a per-problem metric between every two models of each run, over the problems that both have.

    Returns run, model, other, value (model minus other), low, high, problems.
    """
    parts: list[dict[str, object]] = []
    for (run,), group in table.sort("run", "model", "problem").group_by(["run"], maintain_order=True):
        weights = resamples(group.select("problem", "category").unique().sort("problem")["category"].to_list())
        values, given = _matrices(group, metric, None)
        models = group["model"].unique().sort().to_list()
        for i, model in enumerate(models):
            for j in range(i + 1, len(models)):
                both = given[:, i] * given[:, j]
                row = _interval(weights, ((values[:, i] - values[:, j]) * both)[:, None], both[:, None])
                parts.append({"run": run, "model": model, "other": models[j], **row.row(0, named=True)})
    schema = {
        **dict.fromkeys(("run", "model", "other"), pl.String),
        **dict.fromkeys(("value", "low", "high"), pl.Float64),
        **dict.fromkeys(("problems", "dropped"), pl.Int64),
    }
    return pl.DataFrame(parts, schema=schema).drop("dropped")


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


def _matrices(group: pl.DataFrame, numerator: str, denominator: str | None) -> tuple[np.ndarray, np.ndarray]:
    """(problems, models) sums and counts, rows and columns sorted by name, zero where a value is missing."""
    problems, models = (group.select(pl.col(c).unique().sort()) for c in ("problem", "model"))
    grid = problems.join(models, how="cross", maintain_order="left_right")
    below = pl.col(denominator).cast(pl.Float64) if denominator else pl.col(numerator).is_not_null().cast(pl.Float64)
    given = group.select("problem", "model", above=pl.col(numerator).cast(pl.Float64), below=below)
    full = grid.join(given, on=["problem", "model"], how="left", maintain_order="left")
    shape = (problems.height, models.height)
    present = full["above"].is_not_null() & full["below"].is_not_null()
    sums = full["above"].fill_null(0.0).to_numpy() * present.to_numpy()
    counts = full["below"].fill_null(0.0).to_numpy() * present.to_numpy()
    return sums.reshape(shape), counts.reshape(shape)


def _interval(weights: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> pl.DataFrame:
    """value, low, high, problems, dropped, one row per column of ``sums``."""
    total = counts.sum(axis=0)
    entered = (counts > 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = sums.sum(axis=0) / total
        drawn = (weights @ sums) / (weights @ counts)  # nan where a resample holds no problem with a value
        low, high = np.nanpercentile(np.where(np.isnan(drawn).all(axis=0), 0.0, drawn), PERCENTILES, axis=0)
    enough = entered >= LEAST_PROBLEMS
    frame = pl.DataFrame(
        {
            "value": value,
            "low": np.where(enough, low, np.nan),
            "high": np.where(enough, high, np.nan),
            "problems": entered.astype(np.int64),
            "dropped": (len(sums) - entered).astype(np.int64),
        }
    )
    return frame.with_columns(pl.col("value", "low", "high").fill_nan(None))
