"""One candidate file, judged on this machine without Ray: what ``pkb eval`` does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pkb import problem
from pkb.config import Config
from pkb.errors import UserError
from pkb.records import Evaluation, Job


def judge_file(path: Path, ident: str, config: Config) -> Evaluation:
    """Judge the candidate in a file. Raises UserError if it cannot be read or the problem does not exist, HarnessError otherwise."""
    from pkb.evaluate.node import Evaluator

    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read candidate {path}: {error}") from None
    name = problem.resolve(ident)
    problem.load(name).shape(config.ranks, config.size.preset, config.dtype, config.size.dims)
    with Evaluator(config) as evaluator:
        job = Job(name, source, config.ranks, config.size.preset, config.size.dims, config.dtype, config.device, str(path))
        return evaluator.evaluate(job)


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The record as one JSON object, every field by its column's name."""
    return {k: str(v) if k in ("verdict", "stage") else v for k, v in dataclasses.asdict(evaluation).items()}
