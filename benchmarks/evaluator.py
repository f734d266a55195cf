"""Node seconds of one candidate by stage, and the A/A run: every reference judged as its own candidate.

    PYTHONPATH=. python benchmarks/evaluator.py [--problems 1-20] [--device cpu|cuda] [--share] [--size smoke] [--json FILE] [key=value ...]

The policy on collectives is switched off, so each reference is timed against itself: the interval of its speedup should hold 1.0.
Prints a table and the totals; with --json also writes them. Results: docs/measurements.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from pkb import config, problem
from pkb.errors import HarnessError
from pkb.evaluate.node import Evaluator
from pkb.records import Evaluation, Job

STAGES = ("load", "correctness", "timing", "end", "total")


def judge_references(settings: config.Config) -> list[dict[str, Any]]:
    """One row per problem: verdict, seconds by stage, speedup of the reference over itself."""
    rows = []
    with Evaluator(settings) as evaluator:
        for name in settings.problem_names():
            spec, size = problem.load(name), settings.size
            job = Job(name, spec.reference_source, settings.ranks, size.preset, size.dims, settings.dtype, settings.device)
            start = time.monotonic()
            try:
                rows.append(row_of(evaluator.evaluate(job)))
            except HarnessError as error:
                rows.append(
                    {"problem": name, "verdict": "harness_error", "detail": str(error), "total": time.monotonic() - start}
                )
            print(line_of(rows[-1]), flush=True)
    return rows


def row_of(found: Evaluation) -> dict[str, Any]:
    """What of an evaluation is shown."""
    interval = None if found.speedup is None else [found.speedup, found.speedup_low, found.speedup_high]
    return {
        "problem": found.problem,
        "verdict": str(found.verdict),
        "detail": found.detail,
        **{s: found.seconds_by_stage.get(s) for s in STAGES},
        "reference_ms": found.reference_ms,
        "candidate_ms": found.candidate_ms,
        "speedup": interval,
        "holds_1": None if interval is None else interval[1] <= 1.0 <= interval[2],
        "timing_seconds": dict(found.extra.get("timing", {})).get("seconds"),
    }


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    seconds = " ".join("      -" if row.get(s) is None else f"{row[s]:7.2f}" for s in STAGES)
    if row.get("speedup") is None:
        return f"{row['problem'][:36]:36} {row['verdict']:14} {seconds}  {row['detail'][:80]}"
    middle, low, high = row["speedup"]
    held = "" if row["holds_1"] else "  without 1.0"
    return f"{row['problem'][:36]:36} {row['verdict']:14} {seconds} {row['reference_ms']:9.3f} {middle:6.3f} [{low:.3f}, {high:.3f}]{held}"


def totals_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over problems, and how often the interval held 1.0."""
    timed = [r for r in rows if r.get("speedup")]
    return {
        "problems": len(rows),
        "correct": sum(r["verdict"] == "correct" for r in rows),
        "median_seconds": {s: statistics.median([r[s] for r in rows if r.get(s) is not None] or [0.0]) for s in STAGES},
        "timed": len(timed),
        "interval_holds_1": sum(r["holds_1"] for r in timed),
        "median_within_2_percent": sum(abs(r["speedup"][0] - 1) <= 0.02 for r in timed),
        "median_speedup": statistics.median([r["speedup"][0] for r in timed]) if timed else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="1-20")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--share", action="store_true", help="ranks share a GPU")
    parser.add_argument("--size", default="smoke")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    given = parser.parse_args()
    settings = config.load(
        [
            f"problems=[{given.problems}]",
            f"device={given.device}",
            f"size={given.size}",
            f"evaluation.share_device={str(given.share).lower()}",
            "integrity.collectives=any",
            *given.overrides,
        ]
    )
    before = os.getloadavg()
    print(
        f"{'problem':36} {'verdict':14} "
        + " ".join(f"{s[:7]:>7}" for s in STAGES)
        + "    ref ms speedup of the reference over itself"
    )
    rows = judge_references(settings)
    summary = {**totals_of(rows), "cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()}
    print(json.dumps(summary, indent=2))
    if given.json:
        given.json.write_text(json.dumps({"summary": summary, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
