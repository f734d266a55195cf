"""One whole machine as a Ray actor: all its GPUs, or its CPU ranks when there are none. Calls into ``pkb``; decides nothing."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.records import Evaluation, Job
from pkb.sweep import actor_process, topology


class GpuNode:
    """Owns the evaluators of one machine: one, or one for each of several disjoint groups of its GPUs.

    groups: CUDA devices of each group; None for CPU ranks. Several groups are formed anew by the links between GPUs. evaluator:
    where its class is, ``module:name``. Every evaluator lives in a thread of its own, because what it starts is to die with the
    thread that started it. Failures of the machine come back as text, so that no traceback has to travel.
    """

    def __init__(self, config: Config, name: str, groups: Sequence[Sequence[int] | None], evaluator: str) -> None:
        self._removed = actor_process.claim(name)
        self._config, self._name, self._class = config, name, evaluator
        self._groups = topology.arranged(groups)
        self._threads = [ThreadPoolExecutor(1, f"group-{i}") for i in range(len(groups))]
        self._evaluators: list[Any] = [None] * len(groups)
        self._ended = threading.Event()

    def ready(self) -> tuple[str, str]:
        """What was left of an earlier owner of this machine and is removed now (empty if nothing was), and where this one logs."""
        return self._removed, actor_process.log_path()

    def evaluate(self, group: int, job: Job, build: Any) -> Evaluation | str:
        """The verdict, or why the machine failed."""
        return self._call(group, lambda evaluator: evaluator.evaluate(job, build))

    def health(self, group: int) -> str | None:
        """None, or what is wrong with the machine."""
        return self._call(group, lambda evaluator: evaluator.health())

    def until_death(self) -> None:
        """Returns when the actor is told to end; a caller that waits for it learns of the actor's death at once."""
        self._ended.wait()

    def close(self) -> None:
        """End every process of this machine's evaluators."""
        for thread, evaluator in zip(self._threads, self._evaluators, strict=True):
            if evaluator is not None:
                thread.submit(evaluator.close).result()
        actor_process.release()
        self._ended.set()

    def _call(self, group: int, action: Callable[[Any], Any]) -> Any:
        def run() -> Any:
            if self._evaluators[group] is None:
                evaluator = pkgutil.resolve_name(self._class)
                self._evaluators[group] = evaluator(self._config, devices=self._groups[group], name=self._name)
            return action(self._evaluators[group])

        try:
            return self._threads[group].submit(run).result()
        except (HarnessError, UserError) as error:
            return str(error) or "unexplained harness error"
