"""One candidate file, judged on this machine without Ray: what ``pkb eval`` does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pkb import problem
from pkb.config import Config
from pkb.errors import UserError
from pkb.records import Evaluation, Job


def judge_file(path: Path, ident: str, config: Config, purpose: str = "") -> Evaluation:
    """Judge the candidate in a file. Raises UserError if it cannot be read or the problem does not exist, HarnessError otherwise."""
    from pkb.evaluate.node import Evaluator

    job = job_of(path, ident, config, purpose)
    with Evaluator(config) as evaluator:
        return evaluator.evaluate(job)


def profile_file(path: Path, ident: str, config: Config, out: Path | None, calls: int) -> dict[str, Any]:
    """Where the time of the candidate in a file goes; the ranks' Chrome traces and the summary go to the folder ``out``.

    Raises UserError if it cannot be run or ``out`` not be written, HarnessError otherwise.
    """
    from pkb.evaluate.node import Evaluator
    from pkb.files import write_atomic

    job = job_of(path, ident, config)
    if calls < 1:
        raise UserError(f"--calls {calls}: profile at least 1 call")
    with Evaluator(config) as evaluator:
        summary, traces = evaluator.profile(job, calls)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for rank, trace in enumerate(traces):
                write_atomic(out / f"rank{rank}.json", trace)
            write_atomic(out / "summary.json", json.dumps(summary, indent=1))
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror}") from None
    return summary


def job_of(path: Path, ident: str, config: Config, purpose: str = "") -> Job:
    """The job to judge the candidate in a file; raises UserError as ``judge_file`` does."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read candidate {path}: {error}") from None
    name = problem.resolve(ident)
    problem.load(name).shape(config.ranks, config.size.preset, config.dtype, config.size.dims)
    size = config.size
    return Job(name, source, config.ranks, size.preset, size.dims, config.dtype, config.device, str(path), purpose)


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The record as one JSON object, every field by its column's name."""
    return {k: str(v) if k in ("verdict", "stage") else v for k, v in dataclasses.asdict(evaluation).items()}
