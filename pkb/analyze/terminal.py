"""The tables of a run for the terminal (rich)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from pkb.analyze.runs import Run, about, evaluations, generations
from pkb.analyze.tables import Tables
from pkb.analyze.turns import gains, open_ends, turn_curves
from pkb.verdict import Verdict

#: Shown where a number is not defined.
NONE = "-"
#: Attempts that are named at most.
LISTED = 10
#: Columns that the whole headline of a usual run takes.
FULL_WIDTH = 100


def summary_tables(found: Tables, width: int = FULL_WIDTH) -> list[Table | Text]:
    """The headline, the verdicts and the denominators, ready to print on a terminal of so many columns.

    On a narrow one the headline leaves out what is least needed, rather than breaking numbers.
    """
    if found.counts.is_empty():
        return [Text("no attempts yet"), *(Text(f"note: {n}") for n in found.notes)]
    wide = width >= FULL_WIDTH
    several = found.counts["run"].n_unique() > 1
    values = {(r["run"], r["model"], r["metric"]): r for r in found.headline.iter_rows(named=True)}
    ks = found.ks if wide else found.ks[:2]
    shown = {f"{m}@{k}": f"{m}@{k}" for m in ("pass", "fast1") for k in ks}
    if wide:
        shown[f"fast1_low@{ks[1]}"] = f"fast1@{ks[1]}\nlower end"
    head = Table(title="Share of problems, with 95 % intervals (bootstrap over problems)", title_justify="left")
    for name in [*(["run"] if several else []), "model"]:
        head.add_column(name, overflow="fold")
    for name in [*shown.values(), "speedup", "cost", *(["cost per\ncorrect"] if wide else [])]:
        head.add_column(name, justify="right")
    for row in found.counts.iter_rows(named=True):
        cells = [_percent(values.get((row["run"], row["model"], m))) for m in shown]
        speedup = values.get((row["run"], row["model"], "speedup"))
        costs = ["cost_usd", *(["cost_per_correct"] if wide else [])]
        money = [_dollars(row[name], row["cost_unknown"]) for name in costs]
        named = [Text(n) for n in ([row["run"]] if several else []) + [row["model"]]]  # a name is no markup
        head.add_row(*named, *(Text(c, justify="right") for c in [*cells, _times(speedup), *money]))
    return [head, _verdict_table(found), *(Text(line) for line in _denominators(found))]


def _verdict_table(found: Tables) -> Table:
    """Verdicts down, models across: there are more verdicts than models, as a rule."""
    present = found.verdicts["verdict"].unique().sort().to_list()
    order = [Verdict.CORRECT, *(v for v in Verdict if v is not Verdict.CORRECT)]
    rows = [*(str(v) for v in order if v in present), *(v for v in present if v not in order)]
    counts = {(r["run"], r["model"], r["verdict"]): r["attempts"] for r in found.verdicts.iter_rows(named=True)}
    several = found.counts["run"].n_unique() > 1
    models = found.counts.select("run", "model").rows()
    table = Table(title="Attempts by verdict", title_justify="left")
    table.add_column("verdict", no_wrap=True)
    for run, model in models:
        table.add_column(Text(f"{model}\n{run}" if several else model), justify="right", overflow="fold")
    for verdict in rows:
        numbers = [str(counts.get((run, model, verdict), 0)) for run, model in models]
        table.add_row(Text(verdict.replace("_", " ")), *numbers)
    return table


def turn_tables(runs: Sequence[Run], policy: str = "run") -> list[Table | Text]:
    """What further turns bought, for those of the runs whose attempts may have several; empty without any.

    Turns that changed nothing are left out, save the first and the last.
    """
    refined = [r for r in runs if r.several_turns]
    if not refined:
        return []
    rows, answers = (pl.concat([read(r) for r in refined]) for read in (evaluations, generations))
    curves, gained = turn_curves(rows, answers, policy), gains(rows, answers)
    if curves.is_empty():
        return [Text(line) for line in open_ends(rows)]
    table = Table(title="What further turns bought: had every attempt been stopped after so many", title_justify="left")
    several = len(runs) > 1
    for name in [*(["run"] if several else []), "model"]:
        table.add_column(name, overflow="fold")
    for name in ("turns", "pass@1", "fast1@1", "problems\nsolved", "cost\nso far", "cost per\nproblem added"):
        table.add_column(name, justify="right")
    points = {(r["run"], r["model"], r["turns"], r["metric"]): r for r in curves.iter_rows(named=True)}
    before: tuple[Any, ...] = ()
    last = {(r["run"], r["model"]): r["turns"] for r in gained.sort("turns").iter_rows(named=True)}
    lines = []
    for row in gained.iter_rows(named=True):
        own = (row["run"], row["model"])
        passed, fast = (points.get((*own, row["turns"], metric)) for metric in ("pass@1", "fast1@1"))
        if passed is None:
            continue
        now = (*own, _percent(passed), _percent(fast), row["solved"])
        if now != before or row["turns"] == last[own]:
            table.add_row(
                *(Text(n) for n in ([row["run"]] if several else []) + [row["model"]]),
                str(row["turns"]),
                *now[2:4],
                f"{row['solved']}" + (f" (+{row['added']})" if row["added"] and row["turns"] > 1 else ""),
                _dollars(passed["cost_usd"], 0),
                NONE if row["cost_per_added"] is None else _dollars(row["cost_per_added"], 0),
            )
        before = now
        if row["turns"] == last[own] and row["plateau"] is not None:
            lines.append(f"{row['model']}: no further problem solved after turn {row['plateau']} of {last[own]}")
    return [table, *(Text(line) for line in [*lines, *open_ends(rows)])]


def _denominators(found: Tables) -> list[str]:
    lines = []
    several = found.counts["run"].n_unique() > 1
    for row in found.counts.iter_rows(named=True):
        who = _who(row, several)
        of = f" of {row['planned']}" if row["planned"] else ""
        parts = [f"{row['attempted']}{of} {_noun('attempt', row['planned'] or row['attempted'])} counted"]
        for name, text in (
            ("missing_provider", "missing because of the provider"),
            ("harness_errors", "left out: the harness failed"),
            ("pending", "not judged yet"),
        ):
            if row[name]:
                parts.append(f"{row[name]} {text}")
        lines.append(f"{who}: " + ", ".join(parts))
    dropped = found.headline.filter((pl.col("dropped") > 0) & pl.col("metric").str.contains(r"^pass@")).iter_rows(named=True)
    lines += [
        f"{_who(r, several)}: {r['metric']} leaves out {r['dropped']} {_noun('problem', r['dropped'])} with too few attempts"
        for r in dropped
    ]
    lines += _left_out(found, several)
    deviating = sum(bool(about(p).deviations) for p in found.cells["problem"].unique())
    if deviating:
        lines.append(
            f"{deviating} of these problems differ on purpose from the original benchmark's; `pkb problems ID` says how"
        )
    return [*lines, *(f"note: {n}" for n in found.notes)]


def _noun(name: str, count: int) -> str:
    return name if count == 1 else f"{name}s"


def _who(row: Mapping[str, Any], several: bool) -> str:
    return f"{row['model']} ({row['run']})" if several else row["model"]


def _left_out(found: Tables, several: bool) -> list[str]:
    """The attempts on which the harness failed, by name: a number alone would ask to be trusted."""
    failed = found.excluded.filter(pl.col("reason") == "harness_error")
    named = [f"{_who(r, several)} at {r['problem']}, attempt {r['attempt']}" for r in failed.head(LISTED).iter_rows(named=True)]
    more = failed.height - len(named)
    return [f"the harness failed on {'; '.join(named)}{f'; and {more} more' if more else ''}"] if named else []


def _percent(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return NONE
    text = f"{100 * row['value']:.0f} %"
    return text if row["low"] is None else f"{text}\n{100 * row['low']:.0f}-{100 * row['high']:.0f}"


def _times(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return NONE
    text = f"{row['value']:.2f}x"
    return text if row["low"] is None else f"{text}\n{row['low']:.2f}-{row['high']:.2f}"


def _dollars(value: float | None, unknown: int) -> str:
    if value is None:
        return "unknown"
    return f"${value:.2f}" + ("+" if unknown else "")
