"""The steps of the GPU benchmark: each turns one item into one small result."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_faults import FAULTS, Fault
from gpu_state import State, attempt

from pkb import hardware, problem
from pkb.config import Config
from pkb.errors import UserError
from pkb.evaluate.build import Build, build
from pkb.evaluate.node import Evaluator
from pkb.records import Evaluation, Job
from pkb.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
BUILD_SECONDS = 90.0  # a build that may not end within what is left of a call is not begun
FAULT_CALL_SECONDS = 6.0  # the deadline within which a hang must be noticed
MEDIAN_WITHIN = 0.02


def candidates(device: str) -> dict[str, Path]:
    """Name -> file of the candidates to judge: the CUDA and Triton ones, or on CPU ranks the prompts' worked examples."""
    if device == "cpu":
        return {f"shm-{p.stem}": p for p in sorted((ROOT / "conf/prompts/examples/shm").glob("*.py"))}
    folders = [ROOT / "tests/candidates/cuda", ROOT / "tests/candidates/triton"]
    return {f"{p.parent.name}-{p.stem}": p for folder in folders for p in sorted(folder.glob("*.py"))}


def faults(device: str) -> dict[str, Fault]:
    """The faults that this device can have."""
    return {name: fault for name, fault in FAULTS.items() if device == "cuda" or not fault.gpu}


def job_of(name: str, source: str, config: Config, preset: str | None = None) -> Job:
    """A job of this configuration; raises UserError where the problem cannot have it."""
    preset = preset or config.size.preset
    problem.load(name).shape(config.ranks, preset, config.dtype)
    return Job(name, source, config.ranks, preset, {}, config.dtype, config.device, name)


def judge(evaluator: Evaluator, config: Config, job: Job, built: Build | None = None) -> Evaluation:
    """One judgement under settings of its own, by an evaluator that serves them all."""
    keep, evaluator.config = evaluator.config, config
    try:
        return evaluator.evaluate(job, built)
    finally:
        evaluator.config = keep


def summary(found: Evaluation) -> dict[str, Any]:
    """What is kept of a judgement."""
    kept = ("problem", "verdict", "detail", "size", "dtype", "max_error", "speedup", "speedup_low", "speedup_high")
    row = {name: getattr(found, name) for name in (*kept, "reference_ms", "candidate_ms", "collective_bytes", "shared_device")}
    row["verdict"], row["detail"] = str(found.verdict), found.detail[:600]
    row["stages"] = {k: round(v, 3) for k, v in found.seconds_by_stage.items()}
    timed = found.extra.get("timing", {})
    row["timing"] = {name: timed[name] for name in ("block_calls", "chain", "seconds") if name in timed}
    if found.verdict is not Verdict.CORRECT:
        row["log"] = (found.build_log or str(found.extra.get("traceback") or found.extra.get("log") or ""))[-1500:]
    return row


# -- doctor ----------------------------------------------------------------------------------------------------------------------


def machine(config: Config, commit: str) -> dict[str, Any]:
    """Where this is measured, and with what."""
    import torch

    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit or _said("git", "-C", os.fspath(ROOT), "rev-parse", "--short=12", "HEAD"),
    }
    if config.device == "cuda":
        rows = _said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
        found["gpus"] = [row.split(", ")[0] for row in rows]
        found["driver"] = rows[0].split(", ")[1] if rows else ""
        found["nvcc"] = (_said("nvcc", "--version").splitlines() or [""])[-1]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def doctor(evaluator: Evaluator, config: Config) -> dict[str, Any]:
    """The canary, and on GPUs what connects them."""
    found: dict[str, Any] = {"health": evaluator.health() or "well", "sandbox": evaluator.level}
    if config.device == "cuda":
        from pkb.evaluate import link

        found["link"] = asdict(link.measure(evaluator.devices))
    return found


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# -- references ------------------------------------------------------------------------------------------------------------------


def reference(evaluator: Evaluator, config: Config, name: str, profile: hardware.Hardware) -> dict[str, Any]:
    """A problem's reference against its oracle, and as its own candidate (A/A)."""
    config = replace(config, integrity=replace(config.integrity, collectives="any"))
    spec = problem.load(name)
    try:
        job = job_of(name, spec.reference_source, config)
    except UserError as error:
        return {"problem": name, "verdict": "inadmissible", "detail": str(error)}
    found = judge(evaluator, config, job)
    row = summary(found)
    row["oracle_error"] = found.extra.get("reference_error")
    cost = spec.cost(spec.shape(config.ranks, config.size.preset, config.dtype))
    peak = profile.peak("float32" if config.dtype == "float32" else config.dtype)
    times = {
        "interconnect": cost.sent_bytes / profile.peer_bandwidth,
        "compute": cost.flops / peak,
        "memory": cost.memory_bytes / profile.memory_bandwidth,
    }
    row["binding"] = max(times, key=lambda k: times[k])
    row["bound_ms"] = 1e3 * max(times.values())
    if found.reference_ms:
        row["share_of_bound"] = row["bound_ms"] / found.reference_ms
    if found.speedup is not None and found.speedup_low is not None and found.speedup_high is not None:
        row["contains_1"] = found.speedup_low <= 1.0 <= found.speedup_high
        row["within_2_percent"] = abs(found.speedup - 1.0) <= MEDIAN_WITHIN
    return row


# -- candidates and throughput ---------------------------------------------------------------------------------------------------


def batch(
    evaluator: Evaluator, config: Config, state: State, names: list[str], builders: int, left: Callable[[], float]
) -> bool:
    """Judge the candidates that are pending, building ahead in threads while the node works; returns whether all were tried."""
    files = candidates(config.device)
    start, first = time.monotonic(), len(state.items)
    idle = node_seconds = 0.0
    builds: list[float] = []
    stages: dict[str, float] = {}
    todo, going = list(names), True
    waiting: dict[Future[Build], str] = {}
    with ThreadPoolExecutor(builders, thread_name_prefix="build") as pool, _utilisation(config.device) as seen:
        while going:
            while todo and len(waiting) < builders and left() > BUILD_SECONDS:
                source = files[todo[0].split("/")[1]].read_text(encoding="utf-8")
                waiting[pool.submit(build, source, config.device, config)] = todo.pop(0)
            if not waiting:
                break
            asked = time.monotonic()
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            idle += time.monotonic() - asked
            future = next(f for f in waiting if f in ready)
            key = waiting.pop(future)
            going = attempt(state, key, lambda f=future, k=key: _judge_built(evaluator, config, files, k, f), left)
            row = state.items.get(key, {})
            node_seconds += row.get("seconds", 0.0)
            builds += [row["build_seconds"]] if row.get("built") else []
            for stage, seconds in row.get("stages", {}).items():
                stages[stage] = round(stages.get(stage, 0.0) + seconds, 3)
        wall = time.monotonic() - start
    judged = len(state.items) - first
    if judged:
        state.batches.append(
            {
                "judged": judged,
                "built": len(builds),
                "build_seconds": round(sum(builds), 1),
                "builders": builders,
                "wall_seconds": round(wall, 2),
                "node_seconds": round(node_seconds, 2),
                "waited_for_builds_seconds": round(idle, 2),
                "gpu_utilisation": round(sum(seen) / len(seen), 3) if seen else None,
                "stages": stages,
            }
        )
        state.save()
    return going and not todo


def _judge_built(
    evaluator: Evaluator, config: Config, files: dict[str, Path], key: str, future: Future[Build]
) -> dict[str, Any]:
    path, built = files[key.split("/")[1]], future.result()
    found = judge(evaluator, config, job_of(problem.resolve(path.stem), path.read_text(encoding="utf-8"), config), built)
    return {**summary(found), "built": not built.cached, "build_seconds": round(built.seconds, 2)}


@contextlib.contextmanager
def _utilisation(device: str) -> Iterator[list[float]]:
    """Samples of the first GPU's utilisation (share of time in which a kernel ran), if the driver says it."""
    samples: list[float] = []
    stop = threading.Event()
    with contextlib.ExitStack() as ends:
        if device == "cuda":
            with contextlib.suppress(Exception):  # no NVML here: the figure is left out
                import pynvml

                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByIndex(0)
                pynvml.nvmlDeviceGetUtilizationRates(handle)

                def sample() -> None:
                    while not stop.wait(0.25):
                        samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

                thread = threading.Thread(target=sample, daemon=True)
                thread.start()
                ends.callback(thread.join)
                ends.callback(stop.set)
        yield samples


# -- faults ----------------------------------------------------------------------------------------------------------------------


def fault(evaluator: Evaluator, config: Config, name: str, good: str) -> dict[str, Any]:
    """One candidate that breaks: its verdict, in what time, and whether the node is well and right afterwards."""
    limits = replace(config.evaluation.limits, call_seconds=FAULT_CALL_SECONDS, build_seconds=60.0)
    evaluation = replace(config.evaluation, limits=limits, timing=replace(config.evaluation.timing, enabled=False), trials=2)
    quick = replace(config, evaluation=evaluation)
    wanted = FAULTS[name]
    spec = problem.load(1)
    evaluator.health()  # everything that a node keeps is there before its memory is looked at
    memory = _free_memory(config)
    start = time.monotonic()
    found = judge(evaluator, quick, job_of(spec.name, wanted.source, config, "smoke"))
    took = time.monotonic() - start
    health = evaluator.health()
    after = judge(evaluator, quick, job_of(spec.name, good, config, "smoke"))
    return {
        **summary(found),
        "wanted": [str(v) for v in wanted.verdicts],
        "as_wanted": found.verdict in wanted.verdicts,
        "verdict_seconds": round(took, 2),
        "health": health or "well",
        "next_verdict": str(after.verdict),
        "next_detail": after.detail[:300],
        "memory_lost_bytes": [a - b for a, b in zip(memory, _free_memory(config), strict=True)],
    }


def _free_memory(config: Config) -> list[int]:
    """Free bytes of each GPU as the driver says it, without a CUDA context of ours, once they have stopped changing."""
    if config.device == "cpu":
        return []
    seen: list[int] = []
    for _ in range(10):
        rows = _said("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits").splitlines()
        last, seen = seen, [int(row) << 20 for row in rows if row.strip().isdigit()]
        if seen == last:
            break
        time.sleep(1.0)  # the spare group is starting, or a context is being taken down
    return seen
