"""A run with something of everything that a report can show, and texts that try to break out of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pkb.config import Config
from tests.analyze.rows import evaluation, generation, write_run

PROBLEMS = [
    *("001_allreduce", "002_allgather", "003_broadcast", "004_reduce", "005_scatter", "006_gather", "007_reducescatter"),
    *("008_alltoall", "017_rope_allgather", "033_ulysses_all_to_all_tensor_primitive", "070_torchrec_kjt_all2all"),
]
MODELS = {"demo-fast": (0.85, 1.9), "demo-slow": (0.6, 0.7), "vendor/hostile<script>alert(1)</script>": (0.25, 1.1)}
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!--"
SOURCE = '''"""One-shot all-gather over peer pointers. {hostile}"""
import torch
import torch.distributed as dist
from utils.cuda_helpers import compile_cuda_extension

SRC = r"""
#include <torch/extension.h>
__global__ void gather(const int64_t* peers, float* out, int n) {{
  // every rank reads all peers
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = reinterpret_cast<const float*>(peers[0])[i] * {number}.0f;
}}
"""


def solution(tensor, group=None):
    rank = dist.get_rank()  # this one
    if rank > {number} and tensor.numel() < 100:
        raise ValueError("small")
    return tensor
'''
FAILURES = (
    "mismatch",
    "deadlock",
    "compile_error",
    "runtime_error",
    "no_code",
    "forbidden",
    "nondeterministic",
    "harness_error",
)
MECHANISMS = ("load/store", "copy engine", "nvls", "collective")


def write_demo(path: Path, turns: int = 1, name: str = "demo", attempts: int = 3) -> Path:
    """Three models, eleven problems, three attempts each."""
    dice = random.Random(name)
    rows: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for model, (quality, speed) in MODELS.items():
        for problem in PROBLEMS:
            for attempt in range(attempts):
                if dice.random() < 0.02:
                    answers.append(generation(model, problem, attempt, status="provider_error", error="503", cost_usd=None))
                    continue
                for turn in range(dice.randint(1, turns)):
                    rows.append(
                        _evaluation(dice, model, problem, attempt, turn, quality * (0.6 if turn == 0 < turns - 1 else 1), speed)
                    )
                    answers.append(_generation(dice, model, problem, attempt, turn))
    config = Config(models=list(MODELS), problems=[p[:3] for p in PROBLEMS], attempts=attempts)
    return write_run(path, rows, answers, config, name, created="2026-05-01T00:00:00Z")


def _evaluation(
    dice: random.Random, model: str, problem: str, attempt: int, turn: int, quality: float, speed: float
) -> dict[str, Any]:
    mechanism = dice.choice(MECHANISMS)
    told = {
        "version": 1,
        "primary": mechanism,
        "used": [mechanism],
        "evidence": [{"mechanism": mechanism, "where": "line 3", "text": "x"}],
    }
    more: dict[str, Any] = {
        "turn": turn,
        "seconds_by_stage": json.dumps({"build": 3.25, "correctness": 0.5}),
        "max_error": 0.25,
    }
    if dice.random() < quality:
        speedup = speed * dice.uniform(0.5, 1.8)
        reference = dice.uniform(0.02, 0.1)
        more |= {
            "reference_ms": reference,
            "candidate_ms": reference / speedup,
            "extra": json.dumps({"mechanism": told, "timing": {"calls": 100}}),
        }
        return evaluation(model, problem, attempt, "correct", speedup, **more)
    verdict = dice.choice(FAILURES)
    detail = f"trial 2 (wide), rank 1: output [3, 7] is 1.5, expected 2.5 {HOSTILE}"
    log = 'kernel.cu(7): error: identifier "foo" is undefined\n' + HOSTILE if verdict == "compile_error" else ""
    stage = "extract" if verdict == "no_code" else "build" if verdict == "compile_error" else "correctness"
    extra = json.dumps({"mechanism": told, "traceback": f"RuntimeError: {HOSTILE}"})
    return evaluation(model, problem, attempt, verdict, detail=detail, build_log=log, stage=stage, extra=extra, **more)


def _generation(dice: random.Random, model: str, problem: str, attempt: int, turn: int) -> dict[str, Any]:
    source = SOURCE.format(hostile=HOSTILE, number=dice.randint(1, 99))
    return generation(
        model,
        problem,
        attempt,
        turn=turn,
        source=source,
        answer=f"Here it is.\n```python\n{source}```\n{HOSTILE}",
        prompt=f"Write {problem}. {HOSTILE}",
        prompt_hash=f"hash-{problem}",
        usage=json.dumps({"input": 1200, "output": 800}),
        cost_usd=round(dice.uniform(0.001, 0.02), 5),
    )
