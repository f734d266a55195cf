"""An evaluator without ranks, for benchmarks of everything around it."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from pkb.config import Config
from pkb.evaluate.build import Build
from pkb.records import Evaluation, Job
from pkb.verdict import Stage, Verdict


class Evaluator:
    """Sleeps 5 to 30 ms and finds everything correct."""

    def __init__(self, config: Config, *, devices: Any = None, name: str = "", log_dir: Any = None) -> None:
        self._name, self._random = name, random.Random(os.getpid())

    def evaluate(self, job: Job, build: Build) -> Evaluation:
        """A verdict after the time that an evaluation is said to take here."""
        time.sleep(self._random.uniform(0.005, 0.030))
        return Evaluation(
            job.problem,
            Verdict.CORRECT,
            "correct on all trials",
            Stage.DONE,
            job.world_size,
            job.preset,
            job.dtype,
            job.device,
            trials=5,
            speedup=self._random.lognormvariate(0, 0.5),
            reference_ms=1.0,
            candidate_ms=1.0,
            max_error=0.5,
            seconds_by_stage={"correctness": 0.01, "timing": 0.01},
            node=self._name,
        )

    def health(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to end."""


def build(source: str, device: str, config: Config) -> Build:
    """Nothing to compile."""
    return Build("stub", True)
