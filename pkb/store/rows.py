"""Records of ``pkb.records`` as rows of ``pkb.store.schema``, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pkb.records import AttemptKey, Evaluation, Generation
from pkb.store.schema import SCHEMA_VERSION
from pkb.verdict import GenerationStatus, Stage, Verdict

Row = dict[str, Any]
_JSON_COLUMNS = ("sent", "usage", "seconds_by_stage", "extra")


def generation_row(generation: Generation) -> Row:
    """One row of ``generations``."""
    return _row(
        generation.key, {f.name: getattr(generation, f.name) for f in dataclasses.fields(generation) if f.name != "key"}
    )


def evaluation_row(key: AttemptKey, evaluation: Evaluation, tried: int = 0, log: str = "") -> Row:
    """One row of ``evaluations``. tried: how many tries ended in harness errors before. log: relative to the run directory."""
    values = {f.name: getattr(evaluation, f.name) for f in dataclasses.fields(evaluation) if f.name != "problem"}
    return _row(key, {**values, "try": tried, "log": log})


def generation_of(row: Mapping[str, Any]) -> Generation:
    """The record of a full row of ``generations``."""
    values = {f.name: row[f.name] for f in dataclasses.fields(Generation) if f.name != "key"}
    values["status"] = GenerationStatus(row["status"])
    for name in ("sent", "usage"):
        values[name] = json.loads(row[name])
    return Generation(key=key_of(row), **values)


def evaluation_of(row: Mapping[str, Any]) -> Evaluation:
    """The record of a full row of ``evaluations``."""
    values = {f.name: row[f.name] for f in dataclasses.fields(Evaluation)}
    values["verdict"], values["stage"] = Verdict(row["verdict"]), Stage(row["stage"])
    for name in ("seconds_by_stage", "extra"):
        values[name] = json.loads(row[name])
    return Evaluation(**values)


def key_of(row: Mapping[str, Any]) -> AttemptKey:
    """The identity of a row."""
    return AttemptKey(row["run"], row["model"], row["problem"], row["attempt"], row["turn"])


def _row(key: AttemptKey, values: Mapping[str, Any]) -> Row:
    row = {**dataclasses.asdict(key), "schema_version": SCHEMA_VERSION, **values}
    for name, value in row.items():
        if name in _JSON_COLUMNS:
            row[name] = json.dumps(value, default=str, sort_keys=True)
        elif isinstance(value, str):
            # Enumerations become plain text; lone surrogates, which models and compilers do emit, have no UTF-8 form.
            row[name] = str(value).encode("utf-8", "replace").decode()
    return row
