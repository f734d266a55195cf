"""How busy the driver keeps GPU nodes, on durations like those of a real sweep, in simulated time.

5 models x 87 problems x 3 attempts on two nodes; a generation takes 20-600 s, a build 20-60 s, an evaluation 4-15 s. The driver is
the real one with a real store; models, builders and nodes are stand-ins that only take time, and time is the event loop's own: when
every coroutine waits, the clock jumps to the next deadline. Prints one JSON object.

    python benchmarks/utilisation.py [--nodes 2] [--builders 0] [--in-flight 128] [--lag 64] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import selectors
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from pkb.config import Config
from pkb.evaluate.build import Build
from pkb.problem import load, names
from pkb.records import AttemptKey, Evaluation, Generation, Job
from pkb.store import run as runs
from pkb.store.writer import RunStore
from pkb.sweep import plan as plans
from pkb.sweep.driver import Driver
from pkb.sweep.placement import BUILDERS_PER_NODE
from pkb.sweep.progress import Progress
from pkb.sweep.recorder import Recorder
from pkb.verdict import GenerationStatus, Stage, Verdict

MODELS = [f"model-{i}" for i in range(5)]
ATTEMPTS = 3
GENERATION, BUILD, EVALUATION = (20.0, 600.0), (20.0, 60.0), (4.0, 15.0)  # seconds


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while anything runs, threads included, and jumps when everything waits."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now = 0.0
        self.threads = 0

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        self.threads += 1
        future = super().run_in_executor(executor, function, *arguments)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: Any) -> None:
        self.threads -= 1


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self, loop: SimulatedTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if self._loop.threads or timeout is None:
            return super().select(0.001 if timeout is None or timeout > 0 else timeout)
        ready = super().select(0)
        if not ready:
            self._loop.now += max(0.0, timeout)
        return ready


class Durations:
    """The recorded times: the same for every policy that is tried on them."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        keys = [(m, p, a) for m in MODELS for p in names() for a in range(ATTEMPTS)]
        self.generation = {key: dice.uniform(*GENERATION) for key in keys}
        self.build = {key: dice.uniform(*BUILD) for key in keys}
        self.evaluation = {key: dice.uniform(*EVALUATION) for key in keys}


class Models:
    """Answers after the recorded time; the answer names its attempt."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    async def generate(self, model: Any, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        await asyncio.sleep(self._durations.generation[key.model, key.problem, key.attempt])
        parameters = ", ".join(p.name for p in load(key.problem).parameters())
        source = f"# {key.model} {key.problem} {key.attempt}\ndef solution({parameters}):\n    return None\n"
        return Generation(key, GenerationStatus.OK, "prompt", "hash", answer=source, source=source)

    def unavailable(self, name: str) -> str | None:
        return None

    def forget(self, generation: Generation) -> None:
        return None


class Node:
    """Evaluates for the recorded time and remembers when."""

    def __init__(self, name: str, durations: Durations) -> None:
        self.name, self._durations = name, durations
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.spans: list[tuple[float, float]] = []

    async def evaluate(self, job: Job, build: Build | None) -> Evaluation:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(self._durations.evaluation[_key(job.source)])
        self.spans.append((began, loop.time()))
        return Evaluation(job.problem, Verdict.CORRECT, "", Stage.DONE, job.world_size, job.preset, job.dtype, job.device)

    async def health(self) -> str | None:
        return None


class Cluster:
    """Nodes that are there from the start, and so many builders."""

    def __init__(self, nodes: int, builders: int, durations: Durations) -> None:
        self.all = [Node(f"node-{i}", durations) for i in range(nodes)]
        self._free = asyncio.Semaphore(builders)
        self._durations = durations

    async def nodes(self) -> AsyncIterator[Node]:
        for node in self.all:
            yield node
        await asyncio.Event().wait()

    async def build(self, source: str, device: str) -> Build:
        async with self._free:
            await asyncio.sleep(self._durations.build[_key(source)])
        return Build("key", True)

    async def close(self) -> None:
        return None


async def simulate(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One sweep; shares of time between the first evaluation's start and the last one's end."""
    durations = Durations(options.seed)
    config = Config(models=MODELS, problems=["all"], attempts=ATTEMPTS)
    config = dataclasses.replace(
        config,
        generation=dataclasses.replace(config.generation, max_in_flight=options.in_flight),
        cluster=dataclasses.replace(config.cluster, lag=options.lag),
    )
    runs.write(run, config)
    loop = asyncio.get_running_loop()
    builders = options.builders or BUILDERS_PER_NODE * options.nodes
    cluster = Cluster(options.nodes, builders, durations)
    with RunStore(run) as store:
        plan = plans.make(run, run.name, MODELS, names(), ATTEMPTS)
        progress = Progress(loop.time)
        recorder = Recorder(store, progress.notice)

        def ask(key: AttemptKey, history: Any) -> list[dict[str, Any]] | None:
            return None if history else [{"role": "user", "content": "prompt"}]

        await Driver(config, plan, recorder, Models(durations), cluster, dict.fromkeys(MODELS), ask, progress).run()
    first = min(span[0] for node in cluster.all for span in node.spans)
    last = max(span[1] for node in cluster.all for span in node.spans)
    busy = [sum(end - begin for begin, end in node.spans) for node in cluster.all]
    return {
        "attempts": plan.total,
        "nodes": options.nodes,
        "builders": builders,
        "in_flight": options.in_flight,
        "lag": options.lag,
        "first_evaluation_s": round(first),
        "last_evaluation_s": round(last),
        "busy": [round(seconds / (last - first), 4) for seconds in busy],
        "busy_all": round(sum(busy) / (last - first) / len(busy), 4),
        "least_possible_s": round(sum(durations.evaluation.values()) / options.nodes),
    }


def main() -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--builders", type=int, default=0, help="0: as many as the sweep would start")
    parser.add_argument("--in-flight", type=int, default=Config().generation.max_in_flight)
    parser.add_argument("--lag", type=int, default=Config().cluster.lag)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    loop = SimulatedTime()
    with tempfile.TemporaryDirectory(prefix="pkb-benchmark-") as folder:
        try:
            found = loop.run_until_complete(simulate(Path(folder) / "run", options))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
    print(json.dumps(found, indent=1))


def _key(source: str) -> tuple[str, str, int]:
    _, model, problem, attempt = source.splitlines()[0].split()
    return model, problem, int(attempt)


if __name__ == "__main__":
    main()
