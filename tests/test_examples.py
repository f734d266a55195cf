"""Every worked example of a prompt is itself a candidate that ends ``correct``."""

import pytest

from pkb import config, prompt
from pkb.evaluate.one import judge_file
from pkb.verdict import Verdict

CASES = [(backend, path) for backend in ("shm", "cuda", "triton") for path in prompt.examples(backend)]
gpu = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "path"),
    [pytest.param(b, p, marks=[gpu] if b != "shm" else [], id=f"{b}-{p.stem}") for b, p in CASES],
)
@pytest.mark.parametrize("policy", ["none", "metadata"])
def test_example_is_correct(backend, path, policy):
    if backend != "shm":
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")
    device = "cpu" if backend == "shm" else "cuda"
    overrides = [f"device={device}", f"integrity.collectives={policy}", "evaluation.timing.enabled=false"]
    overrides += ["evaluation.share_device=true"] if device == "cuda" else []
    judged = judge_file(path, path.stem, config.load(overrides))
    assert judged.verdict is Verdict.CORRECT, (judged.verdict, judged.detail, judged.build_log[-2000:])


def test_every_backend_with_examples_has_one_for_any_problem():
    for backend in ("shm", "cuda", "triton"):
        assert len(prompt.examples(backend)) >= 2
