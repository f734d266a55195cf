"""The tables of one or several runs: one pass over the rows, then everything from the counts per problem."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import polars as pl

from pkb.analyze import metrics
from pkb.analyze.bootstrap import differences, estimates
from pkb.analyze.runs import Run, describe, evaluations, generations, naming_damage, open_runs
from pkb.analyze.settings import SETTING, apart, differences_between, measured_under
from pkb.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

MODEL = ["run", "model"]
#: k that tables show whatever the number of attempts.
KS = (1, 3)
#: fast_p curves: p from 0 to 4.
CURVE = tuple(round(0.05 * i, 2) for i in range(81))
#: What tables read of each row. No text column is among them: a run may hold gigabytes of answers.
_EVALUATION = (*metrics.ATTEMPT, "turn", "verdict", "measured", "stage", "speedup", "speedup_low", "shared_device", *SETTING)
_GENERATION = (*metrics.ATTEMPT, "turn", "status", "cost_usd")


@dataclass(frozen=True)
class Tables:
    """Everything that reports show, as small frames; every frame has ``run`` and ``model`` first.

    headline: one row per model and metric (pass@k, fast1@k, fast1_low@k, best@k, speedup): value, low, high, problems, dropped.
    counts: one row per model: planned, attempted, correct, fast, missing_provider, harness_errors, pending, cost_usd,
        cost_unknown (generations whose cost nobody knows), cost_per_correct, turns_needed (mean over solved attempts).
    verdicts: run, model, verdict, attempts, share of the attempted. missing: run, model, status, attempts.
    categories, projects: as headline, with ``category`` or ``project``. curves: run, model, k, p, value.
    differences: run, model, other_run, other, metric, value, low, high, problems; between runs only if these were measured alike.
    cells: one row per problem: the counts behind it all.
    excluded: run, model, problem, attempt, reason: the attempts outside all denominators, with the generation's status, or
        harness_error.
    notes: what was skipped, mixed or left out; each one line.
    """

    runs: tuple[Run, ...]
    ks: tuple[int, ...]
    headline: pl.DataFrame
    counts: pl.DataFrame
    verdicts: pl.DataFrame
    missing: pl.DataFrame
    categories: pl.DataFrame
    projects: pl.DataFrame
    curves: pl.DataFrame
    differences: pl.DataFrame
    cells: pl.DataFrame
    excluded: pl.DataFrame
    notes: tuple[str, ...]

    #: The frames that reports carry as data.
    FRAMES: ClassVar[tuple[str, ...]] = (
        *("counts", "headline", "verdicts", "missing", "categories", "projects", "curves", "differences", "cells"),
        "excluded",
    )


def tables(paths: Sequence[Path | str], policy: str = "run") -> Tables:
    """All tables of these runs, side by side; raises UserError for a path that is no run directory.

    policy: "any" judges candidates that broke the run's policy by their values alone.
    """
    runs = open_runs(paths)
    with warnings.catch_warnings(record=True) as caught, naming_damage(runs):
        warnings.simplefilter("always")
        read = [(r, _narrow(evaluations(r), _EVALUATION), _narrow(generations(r), _GENERATION)) for r in runs]
        unlike = differences_between(runs, [measured_under(r, rows) for r, rows, _ in read])
        pairs = [apart(*one) for one in read]
        rows, answers = (pl.concat(frames) for frames in zip(*pairs, strict=True))
        tries, lost = metrics.without_lost(metrics.attempts(rows, policy), answers)
        counted = tries.group_by(metrics.CELL).agg(pl.col("counts").sum()).select(pl.col("counts").max())
        failed = tries.filter(~pl.col("counts")).select(*metrics.ATTEMPT, reason="verdict")
        most, verdicts, spent, broken = pl.collect_all([counted, _verdicts(tries), _spent(answers), failed])
        ks = _ks(most.item() or 0)
        needed = tries.group_by(MODEL).agg(turns_needed=(pl.col("solved_turn") + 1).mean())
        cells, speeds, turns = pl.collect_all(
            [describe(metrics.cells(tries, (1.0,), ks)), metrics.speed_counts(tries, CURVE), needed]
        )
    values = _values(cells, ks)
    alike = not unlike and values["run"].n_unique() <= len(runs)
    notes = [*unlike, *(str(w.message) for w in caught if issubclass(w.category, UserWarning))]
    return Tables(
        runs=tuple(runs),
        ks=ks,
        headline=_estimated(values, ks),
        counts=_counts(runs, cells, spent, lost).join(turns, on=MODEL, how="left"),
        verdicts=verdicts,
        missing=lost.group_by([*MODEL, "status"]).agg(attempts=pl.len().cast(pl.Int64)).sort(*MODEL, "status"),
        categories=_estimated(values, ks, ["category"]),
        projects=_estimated(values, ks, ["project"]),
        curves=_curves(cells, speeds, ks),
        differences=pl.concat(
            [
                differences(values, metric, alike).with_columns(metric=pl.lit(metric))
                for metric in (f"{name}@{k}" for name in ("pass", "fast1") for k in ks)
            ]
        ),
        cells=cells.sort(metrics.CELL),
        excluded=pl.concat([lost.rename({"status": "reason"}), broken]).sort(metrics.ATTEMPT),
        notes=tuple(dict.fromkeys(notes)),
    )


def summary(paths: Sequence[Path | str], policy: str = "run") -> pl.DataFrame:
    """One row per model: run, model, attempted, pass@k and fast1@k, verdict counts, cost_usd, and what is outside.

    What ``pkb sweep`` prints at its end, as data.
    """
    found = tables(paths, policy)
    wide = found.headline.filter(pl.col("metric").is_in([f"{m}@{k}" for m in ("pass", "fast1") for k in found.ks]))
    parts = [
        found.counts,
        wide.pivot("metric", index=MODEL, values="value"),
        found.verdicts.pivot("verdict", index=MODEL, values="attempts"),
    ]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.join(part, on=MODEL, how="left")
    for verdict in Verdict:
        if verdict not in joined.columns:
            joined = joined.with_columns(pl.lit(0, pl.Int64).alias(verdict))
    return joined.with_columns(pl.col(list(Verdict)).fill_null(0)).sort(MODEL)


def print_summary(run: Path, console: Console) -> None:
    """Print a run's table: what ``pkb sweep`` ends with."""
    from pkb.analyze.terminal import summary_tables, turn_tables

    found = tables([run])
    for part in [*summary_tables(found, console.width), *turn_tables(found.runs)]:
        console.print(part, highlight=False)


def _estimated(values: pl.DataFrame, ks: Sequence[int], by: Sequence[str] = ()) -> pl.DataFrame:
    """The headline metrics with intervals; ``speedup`` is the geometric mean over correct, timed attempts."""
    names = [f"{m}@{k}" for m in ("pass", "fast1", "fast1_low", "best", "fastbest") for k in ks]
    sources: dict[str, tuple[str, str | None]] = {**{n: (n, None) for n in names}, "speedup": ("log_speedup", "timed")}
    logarithmic = pl.col("metric") == "speedup"
    return estimates(values, sources, by, long=True).with_columns(
        pl.when(logarithmic).then(pl.col(c).exp()).otherwise(c).alias(c) for c in ("value", "low", "high")
    )


def _values(cells: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    n = pl.col("n")
    sources = {"pass": "correct", "fast1": "fast1", "fast1_low": "fast1_low"}
    return cells.with_columns(
        metrics.unbiased(n, pl.col(column), k).alias(f"{name}@{k}") for name, column in sources.items() for k in ks
    )


def _curves(cells: pl.DataFrame, speeds: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Mean over problems of fast_p@k for every p of CURVE."""
    grid = cells.lazy().select(*metrics.CELL, "n").join(pl.LazyFrame({"p": CURVE}), how="cross")
    counts = grid.join(speeds.lazy(), on=[*metrics.CELL, "p"], how="left").with_columns(pl.col("fast").fill_null(0))
    values = [metrics.unbiased(pl.col("n"), pl.col("fast"), k).mean().alias(str(k)) for k in ks]
    points = counts.group_by(*MODEL, "p").agg(values).unpivot(index=[*MODEL, "p"], variable_name="k", value_name="value")
    return points.select(*MODEL, pl.col("k").cast(pl.Int64), "p", "value").sort(*MODEL, "k", "p").collect()


def _narrow(rows: pl.LazyFrame, columns: Sequence[str]) -> pl.LazyFrame:
    """These columns, read once: opening a thousand parts costs more than going over their rows several times.

    A key that several rows have (the store writes none; a part that was copied by hand brings them) is warned of and counted once.
    """
    found = rows.select(columns).collect()
    turn = pl.col("attempt").cast(pl.Int64) * 2**31 + pl.col("turn")
    distinct = found.group_by(metrics.CELL).agg(turn.n_unique()).select(pl.col("attempt").sum()).item() or 0
    if distinct < found.height:
        table = "evaluations" if "verdict" in columns else "generations"
        warnings.warn(
            f"{found.height - distinct} rows of {table} repeat the key of another row; the last of each counts", stacklevel=2
        )
        found = found.unique([*metrics.ATTEMPT, "turn"], keep="last", maintain_order=True)
    return found.lazy()


def _ks(most: int) -> tuple[int, ...]:
    """The k worth showing when the best supplied problem has ``most`` attempts: 1 and 3, then up to 10, then 100."""
    return tuple(sorted({*KS, max(min(most, 10), *KS), *([100] if most >= 100 else [])}))


def _verdicts(tries: pl.LazyFrame) -> pl.LazyFrame:
    counted = tries.group_by([*MODEL, "verdict"]).agg(attempts=pl.len().cast(pl.Int64))
    judged = pl.col("attempts").filter(pl.col("verdict") != "harness_error").sum().over(MODEL)
    share = pl.when(pl.col("verdict") != "harness_error").then(pl.col("attempts") / judged)
    return counted.with_columns(share=share).sort(*MODEL, "verdict")


def _spent(answers: pl.LazyFrame) -> pl.LazyFrame:
    return answers.group_by([*MODEL, "status"]).agg(
        attempts=(pl.col("turn") == 0).sum().cast(pl.Int64),
        cost_usd=pl.col("cost_usd").sum(),
        cost_unknown=pl.col("cost_usd").null_count().cast(pl.Int64),
    )


def _counts(runs: Sequence[Run], cells: pl.DataFrame, spent: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    planned = pl.DataFrame(
        {"run": [r.label for r in runs], "planned": [r.planned for r in runs]}, schema={"run": pl.String, "planned": pl.Int64}
    )
    missing = lost.group_by(MODEL).agg(missing_provider=pl.len().cast(pl.Int64))
    judged = cells.group_by(MODEL).agg(
        pl.col("n").sum().alias("attempted"),
        pl.col("correct").sum(),
        pl.col("fast1").sum().alias("fast"),
        pl.col("harness_errors").sum(),
    )
    asked = spent.group_by(MODEL).agg(
        generated=pl.col("attempts").sum(),
        cost_usd=pl.when(pl.col("cost_unknown").sum() < pl.col("attempts").sum()).then(pl.col("cost_usd").sum()),
        cost_unknown=pl.col("cost_unknown").sum(),
    )
    integers = ("attempted", "correct", "fast", "harness_errors", "missing_provider", "generated", "cost_unknown")
    joined = asked.join(judged, on=MODEL, how="full", coalesce=True).join(planned, on="run", how="left")
    joined = joined.join(missing, on=MODEL, how="left")
    joined = joined.with_columns(pl.col(integers).fill_null(0))
    settled = pl.col("attempted") + pl.col("harness_errors") + pl.col("missing_provider")
    return joined.select(
        *MODEL,
        "planned",
        "attempted",
        "correct",
        "fast",
        "missing_provider",
        "harness_errors",
        pending=(pl.max_horizontal("planned", "generated") - settled).clip(lower_bound=0),
        cost_usd="cost_usd",
        cost_unknown="cost_unknown",
        cost_per_correct=pl.when(pl.col("correct") > 0).then(pl.col("cost_usd") / pl.col("correct")),
    ).sort(MODEL)
