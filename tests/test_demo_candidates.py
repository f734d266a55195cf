"""The recorded answers of the demonstration models do what conf/replay/README.md says of them."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pkb import problem as problems
from pkb import tree
from tests.forked import run
from tests.problems.ranks import inputs_of

ROOT = Path(__file__).resolve().parents[1]
REPLAY = ROOT / "conf" / "replay"
MODELS = ("demo-fast", "demo-slow", "demo-faulty")
PROBLEMS = [problems.resolve(i) for i in range(1, 9)]
ATTEMPTS = (0, 1, 2)
SUMS = {"001_allreduce", "004_reduce", "007_reducescatter"}
NATIVE = "demo-fast/001_allreduce/1.md"

#: Answers that are right, besides all of demo-fast's.
SOUND = [
    *(f"demo-slow/{name}/{'2' if name[:3] in ('003', '007') else 'default'}.md" for name in PROBLEMS),
    "demo-faulty/001_allreduce/2.md",
    "demo-faulty/008_alltoall/2.md",
]
#: Answers that return, but not what the reference does.
WRONG = [
    "demo-slow/003_broadcast/0.md",
    "demo-slow/007_reducescatter/0.md",
    "demo-slow/007_reducescatter/1.md",
    "demo-faulty/001_allreduce/0.md",
    "demo-faulty/004_reduce/0.md",
    "demo-faulty/004_reduce/2.md",
    "demo-faulty/006_gather/default.md",
    "demo-faulty/008_alltoall/0.md",
]
#: Right at leisure, wrong in a hurry.
RACY = "demo-faulty/007_reducescatter/default.md"


def path_of(model, name, attempt):
    folder = REPLAY / model / name
    own = folder / f"{attempt}.md"
    return own if own.exists() else folder / "default.md"


def code_of(answer):
    """The Python block of an answer, None if it has none or an unclosed one."""
    found = re.search(r"^```python\n(.*?)^```$", answer, re.S | re.M)
    return found and found[1]


def solution_of(path):
    module = {"__name__": "candidate"}
    exec(compile(code_of((REPLAY / path).read_text()), path, "exec"), module)
    return module["solution"]


def draws():
    """(arguments of inputs_of, whether to make the inputs non-contiguous): shapes, dtypes and sizes change in between."""
    yield from (({"trial": trial, "dtype": "bfloat16"}, False) for trial in range(5))
    yield {"trial": 3, "dtype": "float32"}, False
    yield {"trial": 5, "dtype": "float16"}, True
    yield {"trial": 6, "dtype": "bfloat16", "dims": {"M": 512, "N": 130}}, False
    yield {"trial": 7, "dtype": "bfloat16", "dims": {"M": 512, "N": 0}}, False
    yield from (({"trial": trial, "dtype": "bfloat16"}, False) for trial in range(5, 15))


def scattered(x):
    """The same values in a tensor that is not contiguous."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if isinstance(x, torch.Tensor) else x


def judge(rank, world_size, path, solve):
    """How many of the back-to-back calls went wrong on this rank, and why the first did."""
    name = Path(path).parent.name
    calls, faults = [], []
    for draw, awkward in draws():
        inputs = inputs_of(name, rank, world_size, **draw)
        live = [scattered(x) if awkward else x for x in tree.clone(inputs)]
        calls.append((draw, inputs, live, tree.clone(solve(*live))))
    reference = problems.load(name).reference()
    for draw, inputs, live, output in calls:
        expected = reference(*tree.clone(inputs))
        oracle = reference(*tree.upcast(inputs))
        if not all(torch.equal(a, b) for a, b in zip(tree.tensors(live), tree.tensors(inputs), strict=True)):
            faults.append(f"{draw}: changed its inputs")
        elif output.shape != expected.shape or output.dtype != expected.dtype:
            faults.append(f"{draw}: {output.dtype} {tuple(output.shape)}")
        elif not agree(output, expected, oracle, name in SUMS, world_size):
            faults.append(f"{draw}: other values")
    return len(faults), faults[:1]


def agree(output, expected, oracle, is_sum, world_size):
    if not is_sum:
        return torch.equal(output.contiguous().view(torch.uint8), expected.view(torch.uint8))
    error = (output.double() - oracle).abs()
    rounding = torch.finfo(output.dtype).eps * oracle.abs()  # sums in a wider type, or of two terms, round once
    carried = torch.finfo(torch.float32).eps * world_size * 64  # what a float32 accumulator may lose before that
    return bool((error <= rounding + carried).all())


def judge_all(world_size, paths):
    """{path: faults by rank}; the modules are loaded before the ranks are forked."""
    solutions = {path: solution_of(path) for path in paths}
    faults = run(world_size, _judge_all, solutions, timeout=200.0)
    return {path: [by_rank[path] for by_rank in faults] for path in paths}


def _judge_all(rank, world_size, solutions):
    found = {}
    for path, solve in solutions.items():
        found[path] = judge(rank, world_size, path, solve)
        dist.barrier()
    return found


def judge_delayed(paths, microseconds, **env):
    """judge_all on two ranks in a fresh process, because pkb.symm reads the delay when it is imported."""
    code = f"import json\nfrom tests.test_demo_candidates import judge_all\nprint(json.dumps(judge_all(2, {paths!r})))"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "PKB_SYMM_DELAY_US": str(microseconds),
        **env,
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_sound(found):
    assert {path: faults for path, faults in found.items() if any(count for count, _ in faults)} == {}


FAST = [f"demo-fast/{name}/default.md" for name in PROBLEMS]


def test_fast_answers_agree_with_the_reference_under_random_delays():
    assert_sound(judge_delayed(FAST, 300))


@pytest.mark.slow
def test_the_native_answer_builds_and_agrees_with_the_reference(tmp_path):
    assert_sound(judge_delayed([NATIVE], 300, TORCH_EXTENSIONS_DIR=str(tmp_path)))


def test_fast_answers_agree_with_the_reference_on_four_ranks():
    assert_sound(judge_all(4, FAST))


def test_slow_answers_agree_with_the_reference():
    assert_sound(judge_all(2, SOUND))


def test_wrong_answers_disagree_with_the_reference():
    for path, faults in judge_all(2, WRONG).items():
        assert any(count for count, _ in faults), path


def test_the_missing_barrier_shows_under_random_delays():
    ((_, faults),) = judge_delayed([RACY], 2000).items()
    assert any(count for count, _ in faults)


def test_every_attempt_has_an_answer_and_the_readme_disowns_them():
    for model in MODELS:
        for name in PROBLEMS:
            assert all(path_of(model, name, attempt).is_file() for attempt in ATTEMPTS)
    assert "no model's work" in (REPLAY / "README.md").read_text()
    listed = {str(p.relative_to(REPLAY)) for model in MODELS for p in REPLAY.glob(f"{model}/*/*.md")}
    assert {*FAST, NATIVE, *SOUND, *WRONG, RACY} <= listed
    assert {Path(p).parts[:2] for p in listed} == {(model, name) for model in MODELS for name in PROBLEMS}


def test_only_the_answers_meant_to_lack_code_lack_it():
    without = set()
    for path in sorted(p for model in MODELS for p in REPLAY.glob(f"{model}/*/*.md")):
        if code := code_of(path.read_text()):
            assert all(len(line) <= 128 for line in code.splitlines()), path
            names = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
            if "solution" not in names:
                without.add(str(path.relative_to(REPLAY)))
        else:
            without.add(str(path.relative_to(REPLAY)))
    assert without == {
        "demo-faulty/002_allgather/2.md",
        "demo-faulty/003_broadcast/1.md",
    }
