"""Metrics of a run: pass@k, best-of-k, fast_p@k, speedups, with 95 % intervals. Polars expressions; no loop over rows.

The unit is the attempt. An attempt counts unless the harness failed on it; ``n`` counts attempts of one model at one problem,
``c`` those that are correct, or correct and faster than ``p``. Results of different runs or models are never averaged: ``run``
and ``model`` group every result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from pkb.analyze.bootstrap import estimates
from pkb.analyze.runs import describe
from pkb.errors import UserError
from pkb.verdict import GenerationStatus

CELL = ["run", "model", "problem"]
ATTEMPT = [*CELL, "attempt"]


def attempts(evaluations: pl.LazyFrame | pl.DataFrame, policy: str = "run") -> pl.LazyFrame:
    """One row per attempt from rows of evaluations, which are one per turn.

    Columns: run, model, problem, attempt, turn (the one that stands for the attempt), verdict, correct, counts (false when only
    the harness failed), speedup and speedup_low (null unless correct, timed on unshared devices, and a positive number), turns,
    solved_turn (0-based, null if never).
    An attempt of several turns is its best turn: correct, then largest lower end of the speedup's interval, then earliest;
    if none is correct, its last turn. One that no turn solved and where the harness failed at some turn does not count.
    policy: "run" takes verdicts as recorded; "any" puts the verdict that the values alone deserve in place of ``forbidden``.
    """
    rows = evaluations.lazy()
    eligible = (pl.col("verdict") == "correct") & ~pl.col("shared_device") & is_ratio("speedup")
    rows = rows.select(*ATTEMPT, "turn", verdict_under(policy), "speedup", "speedup_low", "shared_device").select(
        *ATTEMPT,
        "turn",
        "verdict",
        correct=pl.col("verdict") == "correct",
        speedup=pl.when(eligible).then(pl.col("speedup").cast(pl.Float64)),
        speedup_low=pl.when(eligible & is_ratio("speedup_low")).then(pl.col("speedup_low").cast(pl.Float64)),
    )
    several = rows.select((pl.col("turn") > 0).any()).collect().item()
    return _best_turns(rows) if several else _only_turns(rows)


def verdict_under(policy: str) -> pl.Expr:
    """The verdict of a row; with policy "any" the one that its values alone deserve. Raises UserError for another policy."""
    if policy not in ("run", "any"):
        raise UserError(f"policy={policy}: must be run or any")
    verdict = pl.col("verdict")
    told = (verdict == "forbidden") & pl.col("measured").is_not_null()
    return verdict if policy == "run" else pl.when(told).then(pl.col("measured")).otherwise(verdict).alias("verdict")


def is_ratio(column: str) -> pl.Expr:
    """Whether a number can be a time, or a ratio of two times. Polars ranks nan above every number, so that it would count as fast."""
    return pl.col(column).is_finite() & (pl.col(column) > 0)


def _only_turns(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.select(
        *ATTEMPT,
        "turn",
        "verdict",
        "correct",
        "speedup",
        "speedup_low",
        counts=pl.col("verdict") != "harness_error",
        turns=pl.lit(1, pl.UInt32),
        solved_turn=pl.when("correct").then(pl.col("turn")),
    )


def _best_turns(rows: pl.LazyFrame) -> pl.LazyFrame:
    rank = [
        pl.col("correct"),
        pl.col("verdict") == "harness_error",  # one that was never solved is then outside: who knows what that turn was
        pl.col("speedup_low").fill_null(-1.0),
        pl.when("correct").then(-pl.col("turn")).otherwise("turn"),
    ]
    best = rows.group_by(ATTEMPT).agg(
        pl.all().sort_by(rank, descending=True).first(),
        turns=pl.len(),
        solved_turn=pl.col("turn").filter("correct").min(),
    )
    return best.with_columns(counts=pl.col("verdict") != "harness_error")


def without_lost(tries: pl.LazyFrame, answers: pl.LazyFrame) -> tuple[pl.LazyFrame, pl.DataFrame]:
    """The attempts (of ``attempts``) without those that the provider cut short, and these: run, model, problem, attempt, status.

    answers: rows of generations. An attempt of several turns is cut short when the provider fails at one of them before any is
    solved.
    """
    outside = [s.value for s in GenerationStatus if not s.counts]
    failed = answers.filter(pl.col("status").is_in(outside)).select(*ATTEMPT, "status")
    lost = failed.unique(ATTEMPT, keep="any").collect()
    if lost.is_empty():
        return tries, lost
    solved = tries.filter("correct").select(ATTEMPT)
    lost = lost.lazy().join(solved, on=ATTEMPT, how="anti").collect()
    return tries.join(lost.lazy(), on=ATTEMPT, how="anti"), lost


def unbiased(n: pl.Expr, c: pl.Expr, k: int) -> pl.Expr:
    """pass@k = 1 - C(n-c, k) / C(n, k), the chance that k of n attempts drawn without replacement hold one of the c.

    Null when n < k. Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1; the product
    form used here does not overflow, and is exact where it is 0 or 1.
    """
    _check_k(k)
    if k <= 32:
        miss = pl.lit(1.0)
        for i in range(k):
            miss = miss * ((n - c - i).clip(lower_bound=0) / (n - i))
    else:  # the same quotient of factorials by their logarithms: as many terms as k would make a huge expression
        logs = (_log_factorial(n - c) - _log_factorial(n)) + (_log_factorial(n - k) - _log_factorial(n - c - k))
        miss = pl.when(n - c >= k).then(logs.exp()).otherwise(0.0)
    return pl.when(n >= k).then(pl.lit(1.0) - miss)


def _log_factorial(n: pl.Expr) -> pl.Expr:
    """log(n!) for n >= 0 by Stirling's series at n + 11, carried down; relative error below 1e-15."""
    x = n.cast(pl.Float64) + 11.0
    series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5) - 1 / (1680 * x**7)
    down = pl.lit(0.0)
    for i in range(1, 11):
        down = down + (n + i).log()
    return (x - 0.5) * x.log() - x + 0.5 * math.log(2 * math.pi) + series - down


def cells(frame: pl.LazyFrame, thresholds: Sequence[float] = (1.0,), best_of: Sequence[int] = ()) -> pl.LazyFrame:
    """One row per (run, model, problem): the counts that every metric is made of.

    frame: as ``attempts`` gives it. Columns: n, harness_errors, correct, timed (correct with a speedup), log_speedup (sum over
    those), best_speedup, and for every threshold p ``fast{p}`` and ``fast{p}_low`` (correct attempts whose speedup, or its lower end, exceeds
    p), and for every k of best_of ``best@{k}`` and ``fastbest@{k}`` (1.0 or 0.0: whether one of the first k counted attempts
    is correct, or correct and faster than the reference; null when fewer than k count).
    """
    counted = pl.col("counts")
    columns: list[pl.Expr] = [
        counted.sum().cast(pl.Int64).alias("n"),
        (~counted).sum().cast(pl.Int64).alias("harness_errors"),
        pl.col("correct").sum().cast(pl.Int64).alias("correct"),
        pl.col("speedup").count().cast(pl.Int64).alias("timed"),
        pl.col("speedup").log().sum().alias("log_speedup"),
        pl.col("speedup").max().alias("best_speedup"),
    ]
    for p in thresholds:
        columns.append((pl.col("speedup") > p).sum().cast(pl.Int64).alias(fast_name(p)))
        columns.append((pl.col("speedup_low") > p).sum().cast(pl.Int64).alias(f"{fast_name(p)}_low"))
    for k in best_of:
        first = pl.col("attempt").filter(counted).bottom_k(k).max()
        among = counted & (pl.col("attempt") <= first)
        enough = counted.sum() >= k
        columns.append(pl.when(enough).then((pl.col("correct") & among).any().cast(pl.Float64)).alias(f"best@{k}"))
        fast = ((pl.col("speedup") > 1) & among).any().cast(pl.Float64)
        columns.append(pl.when(enough).then(fast).alias(f"fastbest@{k}"))
    return frame.group_by(CELL).agg(columns)


def speed_counts(frame: pl.LazyFrame, thresholds: Sequence[float]) -> pl.LazyFrame:
    """For every cell and threshold, in ascending order, how many attempts are correct and faster: run, model, problem, p, fast.

    One pass, however many thresholds: each attempt falls between two of them. Cells without any correct attempt are absent.
    """
    points = pl.Series(sorted(thresholds), dtype=pl.Float64)
    beaten = pl.lit(points).search_sorted(pl.col("speedup"), side="left").cast(pl.Int64)  # how many thresholds lie below
    binned = frame.filter(pl.col("speedup").is_not_null()).group_by(*CELL, beaten=beaten).agg(count=pl.len().cast(pl.Int64))
    grid = pl.LazyFrame({"p": points, "beaten": range(1, len(points) + 1)}, schema_overrides={"beaten": pl.Int64})
    cells = binned.select(CELL).unique().join(grid, how="cross")
    full = cells.join(binned, on=[*CELL, "beaten"], how="left").sort(*CELL, "beaten")
    return full.select(*CELL, "p", fast=pl.col("count").fill_null(0).cum_sum(reverse=True).over(CELL))


def fast_name(p: float) -> str:
    """``fast1``, ``fast1.5``: correct and speedup > p."""
    return f"fast{p:g}"


def pass_at_k(frame: pl.LazyFrame | pl.DataFrame, k: int, by: str | Sequence[str] = (), policy: str = "run") -> pl.DataFrame:
    """pass@k, the mean over problems of the unbiased estimator, with a 95 % bootstrap interval clustered by problem.

    frame: rows of ``evaluations`` (one run or several). by: further groups beside run and model: "category", "project" or
    "problem". Returns run, model, *by, value, low, high, problems (with n >= k, over which the mean goes), dropped (n < k).
    """
    return _metric(frame, by, policy, unbiased(pl.col("n"), pl.col("correct"), k))


def best_of_k(frame: pl.LazyFrame | pl.DataFrame, k: int, by: str | Sequence[str] = (), policy: str = "run") -> pl.DataFrame:
    """The share of problems that one of the first k counted attempts solves; columns as ``pass_at_k``."""
    _check_k(k)
    return _metric(frame, by, policy, pl.col(f"best@{k}"), best_of=(k,))


def fast_p(
    frame: pl.LazyFrame | pl.DataFrame,
    p: float = 1.0,
    k: int = 1,
    by: str | Sequence[str] = (),
    policy: str = "run",
    lower_end: bool = False,
) -> pl.DataFrame:
    """fast_p@k: as pass@k, over attempts that are correct and whose speedup exceeds p; columns as ``pass_at_k``.

    lower_end: count by the lower end of the speedup's interval in place of its point estimate.
    """
    if not p >= 0:
        raise UserError(f"p={p}: a speedup threshold must be 0 or more")
    name = fast_name(p) + ("_low" if lower_end else "")
    return _metric(frame, by, policy, unbiased(pl.col("n"), pl.col(name), k), thresholds=(p,))


def geometric_mean_speedup(
    frame: pl.LazyFrame | pl.DataFrame, by: str | Sequence[str] = (), policy: str = "run"
) -> pl.DataFrame:
    """exp of the mean log speedup of correct, timed attempts; columns as ``pass_at_k``, value null when there are none."""
    by = _groups(by)
    table = describe(cells(attempts(frame, policy))).collect()
    return estimates(table, {"value": ("log_speedup", "timed")}, by).with_columns(pl.col("value", "low", "high").exp())


def _metric(frame: Any, by: str | Sequence[str], policy: str, value: pl.Expr, **counts: Any) -> pl.DataFrame:
    groups = _groups(by)
    table = describe(cells(attempts(frame, policy), **counts)).with_columns(value=value).collect()
    return estimates(table, {"value": ("value", None)}, groups)


def _groups(by: str | Iterable[str]) -> list[str]:
    names = [by] if isinstance(by, str) else list(by)
    for name in names:
        if name not in ("run", "model", "category", "project", "problem"):
            raise UserError(f"by={name}: group by category, project or problem (run and model always group)")
    return [n for n in dict.fromkeys(names) if n not in ("run", "model")]


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UserError(f"k={k}: must be a whole number of at least 1")
