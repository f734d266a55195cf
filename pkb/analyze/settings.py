"""What a run's numbers were measured under. Rows of different settings are shown apart, never averaged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import polars as pl

from pkb.analyze.runs import Run

#: What makes two results incomparable. (The row's node is no setting: nodes of one sweep are alike, or are said to be not.)
SETTING = ("device", "world_size", "size", "dtype", "policy", "protocol")
#: Stages that end before anything runs: such rows state the configuration, not a measurement.
_NOT_RUN = ("extract", "check", "build")
_KEY = ["model", "problem", "attempt", "turn"]


def setting_of(run: Run) -> dict[str, str]:
    """The run's setting as its configuration states it, for people; ``hardware`` is a profile of conf/hardware."""
    config = run.config
    size = config.get("size") or {}
    dims = "".join(f" {k}={v}" for k, v in sorted((size.get("dims") or {}).items()))
    stated = {
        "hardware": run.hardware or None,
        "device": config.get("device"),
        "world_size": config.get("ranks"),
        "size": f"{size.get('preset', '')}{dims}" if size else None,
        "dtype": config.get("dtype"),
        "policy": run.policy or None,
    }
    return {k: str(v) for k, v in stated.items() if v is not None}


def measured_under(run: Run, evaluations: pl.LazyFrame) -> dict[str, str]:
    """The run's setting as its rows state it, where they agree; else as configured."""
    found = _settings_in(evaluations)
    rows = {k: str(v) for k, v in found.row(0, named=True).items() if v not in (None, "")} if found.height == 1 else {}
    return setting_of(run) | rows


def differences_between(runs: Sequence[Run], measured: Sequence[dict[str, str]]) -> list[str]:
    """One line for each part of the setting in which the runs differ: by their rows (``measured``), or as configured."""
    stated = [setting_of(r) for r in runs]
    lines = []
    for name in ("hardware", *SETTING):
        told = [dict.fromkeys(s[name] for s in settings if name in s) for settings in (measured, stated)]
        values = max(told, key=len)
        if len(values) > 1:
            lines.append(f"the runs differ in {name.replace('_', ' ')}: {', '.join(values)}")
    return lines


def _settings_in(evaluations: pl.LazyFrame) -> pl.DataFrame:
    """The distinct settings of the rows of candidates that ran."""
    ran = ~pl.col("stage").is_in(_NOT_RUN)
    return evaluations.filter(ran).select(SETTING).unique().sort(SETTING).collect()


def apart(run: Run, evaluations: pl.LazyFrame, generations: pl.LazyFrame) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Both tables with ``run`` telling settings apart, in case the run holds rows of more than one; warns when it does.

    Rows that ended before anything ran take the setting of the run's configuration.
    """
    ran = ~pl.col("stage").is_in(_NOT_RUN)
    found = _settings_in(evaluations)
    if found.height <= 1:
        return evaluations, generations
    varying = [c for c in SETTING if found[c].n_unique() > 1]
    shown = "; ".join(" ".join(str(v) for v in row) for row in found.select(varying).unique().sort(varying).rows())
    warnings.warn(f"run {run.label} holds rows of several settings ({shown}), which are shown apart", stacklevel=2)
    stated = setting_of(run)
    usual = {c: stated.get(c, str(found[c].max())) for c in varying}
    parts = [pl.when(ran).then(pl.col(c).cast(pl.String)).otherwise(pl.lit(usual[c])) for c in varying]
    label = pl.concat_str(pl.lit(f"{run.label} ["), pl.concat_str(parts, separator=" "), pl.lit("]"))
    labelled = evaluations.with_columns(run=label)
    names = labelled.select("run", *_KEY).unique(subset=_KEY)
    default = f"{run.label} [{' '.join(usual.values())}]"
    answers = generations.drop("run").join(names, on=_KEY, how="left").with_columns(pl.col("run").fill_null(default))
    return labelled, answers.select(generations.collect_schema().names())
