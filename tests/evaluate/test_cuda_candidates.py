"""CUDA and Triton candidates as models write them: found and told apart without a GPU, judged where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pkb import candidate, config, problem
from pkb.evaluate.build import extensions_in
from pkb.records import Job
from pkb.verdict import Verdict
from tests.evaluate import fixtures

ROOT = Path(__file__).resolve().parents[1] / "candidates"
CUDA = sorted((ROOT / "cuda").glob("*.py"))
TRITON = sorted((ROOT / "triton").glob("*.py"))
IDIOMS = fixtures.load("idioms")  # other ways in which real kernels reach their peers


@pytest.fixture(params=[*CUDA, *TRITON], ids=lambda path: f"{path.parent.name}-{path.stem}")
def path(request):
    return request.param


@pytest.mark.parametrize("path", CUDA, ids=lambda p: p.stem)
def test_the_extension_is_found_without_running_the_candidate(path):
    found = extensions_in(path.read_text())
    assert len(found) == 1, "one extension, however often the module asks for it"
    assert found[0].with_cuda and "__global__" in found[0].cuda_sources[0]
    assert [e.identity() for e in extensions_in(path.read_text())] == [found[0].identity()]


def test_no_two_candidates_share_a_build():
    identities = [e.identity() for path in CUDA for e in extensions_in(path.read_text())]
    assert len(set(identities)) == len(CUDA)


def test_the_static_check_passes(path):
    assert candidate.check(path.read_text(), problem.resolve(path.stem)) is None


def test_they_span_the_categories():
    problems = [problem.load(path.stem) for path in CUDA]
    assert len(problems) >= 14
    assert len({p.category for p in problems}) >= 6


@pytest.fixture(scope="session")
def gpus(tmp_path_factory):
    """Evaluators by dtype with two CUDA ranks, on one GPU if there is no second."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from pkb.evaluate.node import Evaluator

    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    cache = tmp_path_factory.mktemp("builds")
    share = str(torch.cuda.device_count() < 2).lower()
    common = ("device=cuda", "ranks=2", "evaluation.timing.enabled=false", f"evaluation.cache_dir={cache}")
    made = {}

    def evaluator(dtype):
        if dtype not in made:
            made[dtype] = Evaluator(config.load([*common, f"evaluation.share_device={share}", f"dtype={dtype}"]))
        return made[dtype]

    yield evaluator
    for one in made.values():
        one.close()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_is_correct(path, dtype, gpus):
    job = Job(problem.resolve(path.stem), path.read_text(), 2, "smoke", {}, dtype, "cuda", path.stem)
    found = gpus(dtype).evaluate(job)
    assert found.verdict is Verdict.CORRECT, f"{found.detail}\n{found.build_log[:4000]}"


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda f: f.name)
def test_an_idiom_passes_the_static_check_and_its_extension_is_found(idiom):
    name = problem.resolve(idiom.head["problem"])
    assert candidate.check(idiom.source, name) is None
    builds = "compile_cuda_extension(" in idiom.source or "load_inline(" in idiom.source
    assert len(extensions_in(idiom.source)) == builds


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda f: f.name)
def test_an_idiom_is_correct(idiom, dtype, gpus):
    name = problem.resolve(idiom.head["problem"])
    found = gpus(dtype).evaluate(Job(name, idiom.source, 2, "smoke", {}, dtype, "cuda", idiom.name))
    assert found.verdict is Verdict.CORRECT, f"{found.detail}\n{found.build_log[:4000]}"
