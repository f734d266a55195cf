"""Refinement: what each further turn bought. Empty for runs of single turns."""

from __future__ import annotations

from typing import Any

import polars as pl

from pkb.analyze import metrics
from pkb.analyze.bootstrap import estimates
from pkb.analyze.runs import describe

MODEL = ["run", "model"]
_CURVE = {"run": pl.String, "model": pl.String, "turns": pl.Int64, "metric": pl.String}
_GAINS: dict[str, Any] = {
    "run": pl.String,
    "model": pl.String,
    "turns": pl.Int64,
    "solved": pl.Int64,
    "added": pl.Int64,
    "cost_usd": pl.Float64,
    "cost_per_added": pl.Float64,
    "plateau": pl.Int64,
}
_NUMBERS = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "problems": pl.Int64, "dropped": pl.Int64}


def turn_curves(rows: pl.LazyFrame, answers: pl.LazyFrame, policy: str = "run") -> pl.DataFrame:
    """pass@1 and fast1@1 had every attempt been stopped after so many turns, with intervals, and what it had cost by then.

    Runs of single turns are left out.

    rows, answers: evaluations and generations. Returns run, model, turns (1 and up), metric, value, low, high, problems, dropped,
    cost_usd. Every point is over the same attempts, those that count in the end.
    """
    lasts = rows.group_by("run").agg(pl.col("turn").max()).filter(pl.col("turn") > 0).collect()
    if lasts.is_empty():
        return pl.DataFrame(schema={**_CURVE, **_NUMBERS, "cost_usd": pl.Float64})
    rows = rows.filter(pl.col("run").is_in(lasts["run"].implode()))
    counted = metrics.attempts(rows, policy).filter("counts").select(metrics.ATTEMPT).collect().lazy()
    parts = []
    for turn in range(max(lasts["turn"].to_list()) + 1):
        longer = lasts.filter(pl.col("turn") >= turn)["run"].implode()
        early = rows.filter(pl.col("turn") <= turn, pl.col("run").is_in(longer))
        cells = describe(metrics.cells(metrics.attempts(early, policy).join(counted, on=metrics.ATTEMPT, how="semi"))).collect()
        values = cells.with_columns(
            metrics.unbiased(pl.col("n"), pl.col(count), 1).alias(name)
            for name, count in (("pass@1", "correct"), ("fast1@1", "fast1"))
        )
        found = estimates(values, {"pass@1": ("pass@1", None), "fast1@1": ("fast1@1", None)}, long=True)
        spent = answers.filter(pl.col("turn") <= turn).group_by(MODEL).agg(pl.col("cost_usd").sum()).collect()
        parts.append(found.join(spent, on=MODEL, how="left").with_columns(turns=pl.lit(turn + 1, pl.Int64)))
    return pl.concat(parts).select([*_CURVE, *_NUMBERS, "cost_usd"]).sort(*MODEL, "metric", "turns")


def transitions(rows: pl.LazyFrame) -> pl.DataFrame:
    """How often a turn with one verdict was followed by a turn with another: run, model, verdict, following, count."""
    ahead = rows.select(*metrics.ATTEMPT, pl.col("turn") - 1, following="verdict")
    pairs = rows.select(*metrics.ATTEMPT, "turn", "verdict").join(ahead, on=[*metrics.ATTEMPT, "turn"])
    counted = pairs.group_by(*MODEL, "verdict", "following").agg(count=pl.len().cast(pl.Int64))
    return counted.sort(*MODEL, "count", "verdict", "following", descending=[False, False, True, False, False]).collect()


def gains(rows: pl.LazyFrame, answers: pl.LazyFrame) -> pl.DataFrame:
    """What each further turn added: run, model, turns, solved, added, cost_usd, cost_per_added and plateau.

    rows, answers: evaluations and generations. turns: 1 and up. solved: problems with a correct attempt when every attempt is stopped
    after so many turns; added: more than one turn before. cost_usd: of that turn's answers; cost_per_added: null where it added
    nothing. plateau: the number of turns after which nothing was added any more, the same in all rows of a model; null when no
    problem was solved.
    """
    last = rows.select(pl.col("turn").max()).collect().item()
    if not last:
        return pl.DataFrame(schema=_GAINS)
    first = rows.filter(pl.col("verdict") == "correct").group_by(*MODEL, "problem").agg(pl.col("turn").min())
    added = first.group_by(*MODEL, "turn").agg(added=pl.len())
    spent = answers.group_by(*MODEL, "turn").agg(pl.col("cost_usd").sum())
    turns = pl.LazyFrame({"turn": range(last + 1)}, schema={"turn": pl.Int32})
    grid = rows.select(MODEL).unique().join(turns, how="cross")
    filled = grid.join(added, on=[*MODEL, "turn"], how="left").join(spent, on=[*MODEL, "turn"], how="left").sort(*MODEL, "turn")
    counted = filled.with_columns(pl.col("added").fill_null(0), pl.col("cost_usd").fill_null(0.0))
    full = counted.with_columns(
        turns=pl.col("turn").cast(pl.Int64) + 1,
        solved=pl.col("added").cum_sum().over(MODEL),
        cost_per_added=pl.when(pl.col("added") > 0).then(pl.col("cost_usd") / pl.col("added")),
        plateau=(pl.col("turn").cast(pl.Int64) + 1).filter(pl.col("added") > 0).max().over(MODEL),
    )
    return full.select([pl.col(c).cast(t) for c, t in _GAINS.items()]).collect()


def open_ends(rows: pl.LazyFrame) -> list[str]:
    """One line per model with attempts of several turns that are not over, or whose result no judgement apart has confirmed.

    rows: evaluations of runs with ``agent.max_turns`` above 1, with ``extra``. Both happen when a session is stopped.
    """
    told = rows.select(
        *metrics.ATTEMPT,
        "turn",
        correct=pl.col("verdict") == "correct",
        ended=pl.col("extra").str.json_path_match("$.ended.rule").is_not_null(),
        final=pl.col("extra").str.json_path_match("$.final") == "true",
    )
    confirmed = (pl.col("correct") & pl.col("final")).any()
    states = told.group_by(metrics.ATTEMPT).agg(over=pl.col("ended").any(), doubtful=pl.col("correct").any() & ~confirmed)
    counts = {"open": (~pl.col("over")).sum(), "doubtful": (pl.col("over") & pl.col("doubtful")).sum()}
    lines = []
    for row in states.group_by(MODEL).agg(**counts).sort(MODEL).collect().iter_rows(named=True):
        if row["open"]:
            lines.append(
                f"{row['model']}: {row['open']} attempts are not over and count as they stand; --resume continues them"
            )
        if row["doubtful"]:
            lines.append(f"{row['model']}: {row['doubtful']} results were judged only once; --resume confirms them")
    return lines
