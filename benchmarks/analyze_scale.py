"""Time and memory of all tables of a run with a million evaluations.

    PYTHONPATH=. python benchmarks/analyze_scale.py [--rows 1000000] [--dir DIR] [--json]

Writes a run as the store leaves it (parts of 1000 rows, source texts in the generations), once; then computes all tables in a
fresh process and prints its seconds, its peak memory, and the size of the run. Results: docs/measurements.md.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pkb.config import Config
from pkb.problem import names
from pkb.store.layout import PART_ROWS, Slot
from pkb.store.schema import EVALUATIONS, GENERATIONS, SCHEMA_VERSION
from pkb.verdict import Verdict

MODELS = 10
CORRECT = 0.4  # share of attempts; the rest falls on all other verdicts alike
SOURCE_BYTES = 4000  # of each answer; prompts are long too, but equal, and cost little on disk
EMPTY = {pa.string(): "", pa.int32(): 0, pa.int64(): 0, pa.float64(): 0.0, pa.bool_(): False}


def write_run(path: Path, rows: int) -> None:
    """A run of that many evaluations: ten models, all problems, as many attempts as that takes."""
    problems = list(names())
    attempts = -(-rows // (MODELS * len(problems)))
    models = [f"model-{i}" for i in range(MODELS)]
    rng, text = np.random.default_rng(0), random.Random(0)
    words = [f"word{i}" for i in range(5000)]
    for start in range(0, rows, PART_ROWS):
        index = np.arange(start, min(start + PART_ROWS, rows))
        cell = index // attempts
        key = {
            "run": ["big"] * len(index),
            "model": [models[c // len(problems)] for c in cell],
            "problem": [problems[c % len(problems)] for c in cell],
            "attempt": index % attempts,
            "turn": [0] * len(index),
            "schema_version": [SCHEMA_VERSION] * len(index),
        }
        slot = Slot(start // PART_ROWS + 1)
        sources = [" ".join(text.choices(words, k=SOURCE_BYTES // 8)) for _ in index]
        _write(path / "generations" / slot.part, GENERATIONS, len(index), key | _generations(sources))
        _write(path / "evaluations" / slot.part, EVALUATIONS, len(index), key | _evaluations(rng, len(index)))
    config = Config(models=models, problems=["all"], attempts=attempts, device="cuda", ranks=8)
    (path / "run.yaml").write_text(yaml.safe_dump({"run": "big", "config": config.as_dict()}), encoding="utf-8")


def _generations(sources: list[str]) -> dict[str, Any]:
    return {
        "status": ["ok"] * len(sources),
        "source": sources,
        "answer": [f"Here it is.\n```python\n{s}\n```" for s in sources],
        "prompt": ["Write a kernel. " * 500] * len(sources),
        "cost_usd": [0.01] * len(sources),
    }


def _evaluations(rng: np.random.Generator, count: int) -> dict[str, Any]:
    others = [v.value for v in Verdict if v is not Verdict.CORRECT]
    verdicts = ["correct" if r < CORRECT else others[int(r * 1e6) % len(others)] for r in rng.random(count)]
    speedups = [float(s) if v == "correct" else None for s, v in zip(np.exp(rng.normal(0, 0.7, count)), verdicts, strict=True)]
    extra = json.dumps({"mechanism": {"primary": "load/store", "used": ["load/store"]}, "clocks": list(range(50))})
    return {
        "verdict": verdicts,
        "speedup": speedups,
        "speedup_low": [None if s is None else s / 1.05 for s in speedups],
        "reference_ms": [1.0] * count,
        "candidate_ms": [None if s is None else 1 / s for s in speedups],
        "world_size": [8] * count,
        "size": ["default"] * count,
        "dtype": ["bfloat16"] * count,
        "device": ["cuda"] * count,
        "policy": ["metadata"] * count,
        "protocol": [1] * count,
        "build_log": ["ninja: build stopped. " * 20] * count,
        "extra": [extra] * count,
    }


def _write(file: Path, schema: pa.Schema, count: int, columns: dict[str, Any]) -> None:
    arrays = []
    for field in schema:
        filled = [None if field.nullable else EMPTY[field.type]] * count
        arrays.append(pa.array(columns.get(field.name, filled), field.type))
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_arrays(arrays, schema=schema).replace_schema_metadata({"pkb.schema_version": str(SCHEMA_VERSION)})
    pq.write_table(table, file, compression="zstd")


def measure(path: Path) -> dict[str, Any]:
    """Compute all tables of the run in this process: seconds, and the peak of resident memory."""
    begin = time.perf_counter()
    from pkb.analyze.tables import tables

    found = tables([path])
    return {
        "rows": int(found.counts["attempted"].sum() + found.counts["harness_errors"].sum()),
        "seconds": round(time.perf_counter() - begin, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, help="keep the run here, and use it when it exists")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        run = args.dir or Path(scratch) / "big"
        if not (run / "run.yaml").exists():
            write_run(run, args.rows)
        command = [sys.executable, __file__, "--measure", str(run)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        result["run_mib"] = sum(f.stat().st_size for f in run.rglob("*.parquet")) // 2**20
        print(json.dumps(result) if args.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
