"""Every worked example of a prompt is itself a candidate that ends ``correct``."""

import re

import pytest

from pkb import config, problem, prompt
from pkb.evaluate.one import judge_file
from pkb.verdict import Verdict

BACKENDS = [b for b in config.CHOICES["prompt.backend"] if b != "auto"]
CASES = sorted({path: path.parent.name for backend in BACKENDS for path in prompt.examples(backend)}.items())
gpu = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "backend"),
    [pytest.param(p, b, marks=[gpu] if b != "shm" else [], id=f"{b}-{p.stem}") for p, b in CASES],
)
@pytest.mark.parametrize("policy", ["none", "metadata"])
def test_example_is_correct(path, backend, policy):
    if backend != "shm":
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")
    device = "cpu" if backend == "shm" else "cuda"
    overrides = [f"device={device}", f"integrity.collectives={policy}", "evaluation.timing.enabled=false"]
    overrides += ["evaluation.share_device=true"] if device == "cuda" else []
    judged = judge_file(path, path.stem, config.load(overrides))
    assert judged.verdict is Verdict.CORRECT, (judged.verdict, judged.detail, judged.build_log[-2000:])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("template", "most"), [("zero_shot", 0), ("one_shot", 1), ("few_shot", 3)])
def test_what_a_prompt_shows_is_what_is_judged_above(backend, template, most):
    device = "cpu" if backend == "shm" else "cuda"
    judged = {path.stem: path.read_text().strip() for path, _ in CASES if path in prompt.examples(backend)}
    for number in (1, 3, 5, 8):  # three of them are examples themselves, and never shown for their own problem
        text = prompt.render(
            str(number), config.load([f"device={device}", f"prompt.backend={backend}", f"prompt.template={template}"])
        )
        shown = re.findall(r"A correct replacement:\n\n```python\n(.*?)\n```", text, re.DOTALL)
        assert len(shown) == min(most, len(judged) - (problem.load(number).name in judged))
        assert set(shown) <= {source for stem, source in judged.items() if stem != problem.load(number).name}


@pytest.mark.parametrize("template", ["zero_shot", "one_shot"])
def test_examples_of_another_backend_are_introduced_as_such(template):
    overrides = ["device=cuda", "prompt.backend=parallelkittens", f"prompt.template={template}"]
    text = prompt.render("5", config.load(overrides))
    assert ("plain CUDA C++ without ThunderKittens" in text) == (template == "one_shot")
    if template == "one_shot":
        assert (
            text.index("# Backend")
            < text.index("# About the worked examples")
            < text.index("# Worked example:")
            < text.index("# Answer")
        )
