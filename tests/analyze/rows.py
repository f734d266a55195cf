"""Run directories made of rows, for tests of the analysis: what a sweep would have left, without the sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pkb.config import Config
from pkb.store.schema import EVALUATIONS, GENERATIONS, SCHEMA_VERSION

GENERATION = {
    "turn": 0,
    "status": "ok",
    "prompt_hash": "c0ffee",
    "prompt": "Write a kernel.",
    "answer": "```python\ndef solution(x): ...\n```",
    "reasoning": "",
    "source": "def solution(x): ...",
    "extraction": "",
    "finish_reason": "stop",
    "sent": "{}",
    "usage": "{}",
    "cost_usd": 0.01,
    "seconds": 1.0,
    "tries": 1,
    "request_id": "",
    "error": "",
}
EVALUATION = {
    "turn": 0,
    "detail": "",
    "stage": "done",
    "measured": None,
    "speedup": None,
    "speedup_low": None,
    "speedup_high": None,
    "reference_ms": None,
    "candidate_ms": None,
    "max_error": None,
    "trials": 5,
    "world_size": 2,
    "size": "smoke",
    "dtype": "bfloat16",
    "device": "cpu",
    "shared_device": False,
    "reuses_output": None,
    "collective_bytes": None,
    "sandbox": "process",
    "policy": "metadata",
    "protocol": 1,
    "build_log": "",
    "seconds_by_stage": "{}",
    "node": "node-0",
    "try": 0,
    "log": "",
    "extra": "{}",
}


def evaluation(
    model: str, problem: str, attempt: int, verdict: str, speedup: float | None = None, **more: Any
) -> dict[str, Any]:
    """A row of evaluations; a speedup gets an interval of 10 % around it."""
    times: dict[str, Any] = {"speedup": speedup}
    if speedup is not None:
        times |= {"speedup_low": speedup / 1.1, "speedup_high": speedup * 1.1, "reference_ms": speedup, "candidate_ms": 1.0}
    row = {"run": "r", "model": model, "problem": problem, "attempt": attempt, "schema_version": SCHEMA_VERSION}
    return row | EVALUATION | {"verdict": verdict} | times | more


def generation(model: str, problem: str, attempt: int, **more: Any) -> dict[str, Any]:
    row = {"run": "r", "model": model, "problem": problem, "attempt": attempt, "schema_version": SCHEMA_VERSION}
    return row | GENERATION | more


def table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(r) for r in rows], schema=schema)


def write_run(
    path: Path,
    evaluations: list[dict[str, Any]],
    generations: list[dict[str, Any]] | None = None,
    config: Config | None = None,
    name: str = "r",
    **meta: Any,
) -> Path:
    """A run directory of these rows; every evaluation gets a generation unless generations are given."""
    if generations is None:
        generations = [generation(e["model"], e["problem"], e["attempt"], turn=e["turn"]) for e in evaluations]
    for kind, rows, schema in (("evaluations", evaluations, EVALUATIONS), ("generations", generations, GENERATIONS)):
        folder = path / kind
        folder.mkdir(parents=True)
        if rows:
            pq.write_table(table([r | {"run": name} for r in rows], schema), folder / "part-000001.parquet")
    settings = json.loads(json.dumps((config or Config()).as_dict()))
    problems = sorted({r["problem"] for r in [*evaluations, *generations]})
    described = {"run": name, "config": settings, "problems": problems, **meta}
    (path / "run.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return path
