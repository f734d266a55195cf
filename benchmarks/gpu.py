"""What the evaluator does on real GPUs, measured unattended: links, references, A/A runs, candidates, throughput, faults.

Every call works for at most ``--budget-seconds`` and continues where the last one stopped, from one JSON file; it exits with 0 when
everything has been tried and with 3 when it should be called again. Needs torch and a compiler for CUDA, nothing else of pkb's
dependencies:

    PYTHONPATH=. python3 benchmarks/gpu.py --state gpu.json                        # as many GPUs as ranks
    PYTHONPATH=. python3 benchmarks/gpu.py --state gpu.json --ranks 2 --share      # one GPU: times count for nothing
    PYTHONPATH=. python3 benchmarks/gpu.py --state gpu.json --report docs/measurements.md

Further arguments are overrides of the evaluator's configuration (``evaluation.trials=3``).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pkb.config import Config

STEPS = ("doctor", "candidates", "faults", "references")
MARGIN_SECONDS = 15.0  # of the budget, for ending what was started
#: Multicast can put GPUs that others share out of service, so it is never asked for here.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="the JSON file to continue, or to begin")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true", help="let ranks share GPUs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", default="default")
    parser.add_argument("--steps", default=",".join(STEPS), help="which, in this order")
    parser.add_argument("--problems", default="", help="numbers of the problems of candidates and references (all)")
    parser.add_argument("--only", default="", help="items whose name holds this, for instance 'raise in one rank'")
    parser.add_argument("--hardware", default="", help="profile for the bounds (h200, or cpu)")
    parser.add_argument("--budget-seconds", type=float, default=540.0)
    parser.add_argument("--builders", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="compilers at a time")
    parser.add_argument("--cache", type=Path, help="where builds are kept (beside the state)")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot say it")
    parser.add_argument("--report", type=Path, nargs="?", const=Path("-"), help="write the tables and do nothing else")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(given)
    unknown = set(options.steps.split(",")) - set(STEPS)
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    return options


def configuration(options: argparse.Namespace) -> Config:
    """The evaluator's configuration; raises UserError for a bad override."""
    from pkb import config

    cache = options.cache or options.state.resolve().parent / "builds"
    return config.load(
        [
            f"device={options.device}",
            f"ranks={options.ranks}",
            f"dtype={options.dtype}",
            f"size={options.size}",
            f"evaluation.share_device={str(options.share).lower()}",
            f"evaluation.cache_dir={cache}",
            "evaluation.build_jobs=2",
            "evaluation.limits.timing_seconds=30",
            *options.overrides,
        ]
    )


def items(options: argparse.Namespace) -> dict[str, list[str]]:
    """step -> keys of its items, in order."""
    from gpu_steps import candidates, faults

    from pkb import problem

    chosen = {problem.resolve(p) for p in options.problems.split(",") if p} or set(problem.names())
    known = {
        "doctor": ["doctor/machine"],
        "candidates": [
            f"candidates/{n}" for n, path in candidates(options.device).items() if problem.resolve(path.stem) in chosen
        ],
        "faults": [f"faults/{n}" for n in faults(options.device)],
        "references": [f"references/{n}" for n in problem.names() if n in chosen],
    }
    return {step: [key for key in known[step] if options.only in key] for step in options.steps.split(",")}


def work(options: argparse.Namespace) -> int:
    """One call: try what is pending until the budget ends. Returns the exit code."""
    from gpu_state import State, attempt
    from gpu_steps import batch, candidates, doctor, fault, machine, reference

    from pkb import hardware
    from pkb.evaluate.node import Evaluator

    begun = time.monotonic()
    config = configuration(options)
    profile = hardware.load(options.hardware or ("cpu" if options.device == "cpu" else "h200"))
    settings = {name: getattr(options, name) for name in ("ranks", "share", "device", "dtype", "size")}
    settings |= {"hardware": profile.name, "overrides": options.overrides}
    state = State.open(options.state, settings)
    state.machine = state.machine or machine(config, options.commit)
    steps = items(options)
    every = [key for keys in steps.values() for key in keys]

    def left() -> float:
        return options.budget_seconds - MARGIN_SECONDS - (time.monotonic() - begun)

    def run(step: str, keys: list[str], one: Callable[[str], dict]) -> bool:
        return all(attempt(state, key, lambda k=key: one(k.split("/", 1)[1]), left) for key in state.pending(keys))

    if state.pending(every):
        good = next(p for p in candidates(options.device).values() if p.stem == "001_allreduce").read_text(encoding="utf-8")
        with Evaluator(config, name="gpu-benchmark") as evaluator:
            for step, keys in steps.items():
                pending = state.pending(keys)
                if step == "candidates":
                    going = not pending or batch(evaluator, config, state, pending, options.builders, left)
                elif step == "doctor":
                    going = run(step, keys, lambda name: doctor(evaluator, config))
                elif step == "faults":
                    going = run(step, keys, lambda name: fault(evaluator, config, name, good))
                else:
                    going = run(step, keys, lambda name: reference(evaluator, config, name, profile))
                print(f"{step}: {len(keys) - len(state.pending(keys))} of {len(keys)}", flush=True)
                if not going:
                    break
    remaining = state.pending(every)
    state.calls.append({"seconds": round(time.monotonic() - begun, 1), "remaining": len(remaining)})
    state.save()
    print(f"{len(every) - len(remaining)} of {len(every)} items in {options.state}" + ("; call again" if remaining else ""))
    return 3 if remaining else 0


def main(given: list[str] | None = None) -> int:
    """Exit code: 0 all tried, 3 call again, 2 wrong use."""
    from pkb.errors import HarnessError, UserError

    options = arguments(given)
    os.environ.update(ENVIRONMENT)
    try:
        if options.report is None:
            return work(options)
        from gpu_report import report
        from gpu_state import State

        text = report(State.read(options.state))
        if options.report == Path("-"):
            print(text)
        else:
            options.report.write_text(text, encoding="utf-8")
        return 0
    except (UserError, HarnessError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
