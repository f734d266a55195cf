"""How many attempts per second the driver carries end to end, and what memory it takes.

Generation by the `replay` provider, evaluation by a stub of 5-30 ms, everything else real: litellm, Ray actors, the store.

    python benchmarks/sweep_scale.py --attempts 100000 --nodes 8
    python benchmarks/sweep_scale.py restart --rows 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from pkb.config import Config
from pkb.problem import names
from pkb.records import AttemptKey, Evaluation, Generation
from pkb.store import run as runs
from pkb.store.rows import evaluation_row, generation_row
from pkb.store.writer import RunStore
from pkb.sweep import plan as plans
from pkb.sweep.command import single_shot
from pkb.sweep.driver import Driver
from pkb.sweep.progress import Progress
from pkb.sweep.ray_backend import RayBackend
from pkb.sweep.recorder import Recorder
from pkb.verdict import GenerationStatus, Stage, Verdict

MODEL = "demo-fast"
PROBLEMS = 8


def main() -> None:
    """Parse, run, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("throughput", "restart"), default="throughput")
    parser.add_argument("--attempts", type=int, default=100_000, help="throughput: attempts to carry")
    parser.add_argument("--nodes", type=int, default=8, help="throughput: evaluator actors")
    parser.add_argument("--rows", type=int, default=1_000_000, help="restart: finished attempts in the run directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pkb-benchmark-") as folder:
        run = Path(folder) / "run"
        found = restart(run, options.rows) if options.what == "restart" else asyncio.run(throughput(run, options))
    print(json.dumps({"benchmark": options.what, "machine": machine(), **found}, indent=1))


async def throughput(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One session over so many attempts; memory is this process's, sampled every 5 s."""
    from pkb.generate.client import Client
    from pkb.generate.models import load_models

    config = _config(options.attempts // PROBLEMS, options.nodes)
    runs.write(run, config)
    models = load_models([MODEL])
    with RunStore(run) as store:
        plan = plans.make(run, run.name, [MODEL], names()[:PROBLEMS], config.attempts)
        progress = Progress()
        fleet = RayBackend(
            config, run / "ray.log", progress.notice, "benchmarks.stub_node:Evaluator", "benchmarks.stub_node:build"
        )
        client = Client(config.generation, models, config.budget, spool=run / "spool")
        recorder = Recorder(store, progress.notice)
        driver = Driver(config, plan, recorder, client, fleet, {MODEL: models[0]}, single_shot(config), progress)
        samples: list[tuple[int, float]] = []
        sampling = asyncio.create_task(_sample(progress, samples))
        await fleet.open()
        started, cpu = time.monotonic(), time.process_time()
        try:
            await driver.run()
        finally:
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            sampling.cancel()
            await fleet.close()
            await client.close()
    judged = plans.make(run, run.name, [MODEL], names()[:PROBLEMS], config.attempts).judged
    sizes = _part_sizes(run)
    return {
        "attempts": plan.total,
        "judged": int(judged.sum()),
        "seconds": round(seconds, 1),
        "attempts_per_second": round(plan.total / seconds, 1),
        "driver_cpu_ms_per_attempt": round(1000 * cpu / plan.total, 2),
        "memory_mib": {f"at {done}": round(mib) for done, mib in samples[:: max(1, len(samples) // 10)]},
        "memory_mib_most": round(max(mib for _, mib in samples)),
        "rows_per_part": {"parts": len(sizes), "most": max(sizes), "least": min(sizes)},
    }


def restart(run: Path, rows: int) -> dict[str, Any]:
    """How long it takes to know what a run with so many finished attempts still has to do."""
    attempts = rows // PROBLEMS
    problems = names()[:PROBLEMS]
    with RunStore(run) as store:
        for problem in problems:
            for start in range(0, attempts, 1000):
                keys = [AttemptKey(run.name, MODEL, problem, a) for a in range(start, min(attempts, start + 1000))]
                store.append("generations", [generation_row(_generation(key)) for key in keys])
                store.append("evaluations", [evaluation_row(key, _evaluation(key)) for key in keys])
    started = time.monotonic()
    with RunStore(run):
        plan = plans.make(run, run.name, [MODEL], problems, attempts)
        left = int((~plan.judged).sum())
    return {"rows": plan.total, "left": left, "seconds": round(time.monotonic() - started, 2)}


async def _sample(progress: Progress, samples: list[tuple[int, float]]) -> None:
    while True:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        samples.append((progress.done, pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
        print(f"{progress.done} judged, {progress.rate():.0f}/s, {samples[-1][1]:.0f} MiB", file=sys.stderr)
        await asyncio.sleep(5)


def _config(attempts: int, nodes: int) -> Config:
    config = Config(models=[MODEL], problems=[f"1-{PROBLEMS}"], attempts=attempts)
    return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, nodes=nodes, builders=2))


def _generation(key: AttemptKey) -> Generation:
    answer = "def solution(tensor):\n    return tensor\n" * 10
    return Generation(key, GenerationStatus.OK, "a prompt\n" * 50, "0123456789abcdef", answer=answer, source=answer)


def _evaluation(key: AttemptKey) -> Evaluation:
    return Evaluation(key.problem, Verdict.CORRECT, "correct", Stage.DONE, 2, "smoke", "bfloat16", "cpu", trials=5, speedup=1.2)


def _part_sizes(run: Path) -> list[int]:
    import pyarrow.parquet as pq

    return [pq.read_metadata(path).num_rows for path in sorted((run / "evaluations").glob("part-*.parquet"))]


def machine() -> str:
    """The machine in a few words."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return f"{os.cpu_count()} cores ({model or platform.machine()}), {memory} GiB, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
