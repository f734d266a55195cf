"""Prompts: deterministic, complete, and never with the answer to the question."""

import ast
import os
import subprocess
import sys

import pytest

from pkb import config, problem, prompt
from pkb.errors import UserError

BACKENDS = [("cpu", "shm"), ("cuda", "cuda"), ("cuda", "triton"), ("cuda", "parallelkittens")]


def conf(device="cpu", backend="auto", *more):
    return config.load([f"device={device}", f"prompt.backend={backend}", *more])


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@pytest.mark.parametrize("template", ["zero_shot", "one_shot", "few_shot"])
def test_states_everything_a_model_needs(device, backend, template):
    text = prompt.render("5", conf(device, backend, f"prompt.template={template}", "ranks=4"))
    target = problem.load(5)
    assert target.reference_source.strip() in text
    assert "def solution(tensor: torch.Tensor, src: int=0) -> torch.Tensor" in text
    assert "4 ranks" in text and "bfloat16" in text
    assert "M=64, N=96" in text
    assert "tampering" in text and "symmetric memory" in text.lower()
    assert "$" not in text.replace("$OUT", "")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_number_of_examples_follows_the_template(device):
    counts = {
        template: prompt.render("5", conf(device, "auto", f"prompt.template={template}")).count("# Worked example")
        for template in ("zero_shot", "one_shot", "few_shot")
    }
    assert counts["zero_shot"] == 0 and counts["one_shot"] == 1 and counts["few_shot"] > 1


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
def test_never_shows_the_example_of_the_problem_asked_for(device, backend):
    own = [path.stem for path in prompt.examples(backend)]
    assert own
    for stem in own:
        text = prompt.render(stem, conf(device, backend, "prompt.template=few_shot"))
        assert f"# Worked example: {problem.load(stem).title}" not in text
        assert "# Worked example" in text


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
def test_examples_have_the_interface_of_their_problem(device, backend):
    for path in prompt.examples(backend):
        from pkb.candidate import parameters_of

        names = [p.name for p in parameters_of(path.read_text())]
        assert names == [p.name for p in problem.load(path.stem).parameters()]
        ast.parse(path.read_text())


def test_same_text_in_any_process():
    code = "from pkb import config, prompt; print(prompt.prompt_hash(prompt.render('8', config.load())))"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": ".", "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {prompt.prompt_hash(prompt.render("8", conf()))}


def test_the_command_prints_it_to_the_byte():
    printed = subprocess.run(
        [sys.executable, "-m", "pkb", "prompt", "--problem", "8", "ranks=4"], capture_output=True, env=os.environ
    )
    assert printed.stdout.decode() == prompt.render("8", conf("cpu", "auto", "ranks=4"))


def test_policy_and_size_change_the_prompt():
    texts = {
        prompt.render("1", conf("cpu", "auto", *more))
        for more in (
            [],
            ["integrity.collectives=none"],
            ["integrity.collectives=any"],
            ["size.M=65"],
            ["ranks=4"],
            ["dtype=float32"],
        )
    }
    assert len(texts) == 6


def test_messages_hold_the_rendered_text():
    assert prompt.messages("1", conf()) == [{"role": "user", "content": prompt.render("1", conf())}]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prompt.template=two_shot"], "no prompt template 'two_shot'"),
        (["prompt.backend=cuda"], "prompt.backend=cuda does not run on device=cpu"),
        (["device=cuda", "prompt.backend=shm"], "prompt.backend=shm does not run on device=cuda"),
        (["size.Q=3"], "no dimension 'Q'"),
    ],
)
def test_bad_input_is_one_clear_line(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        prompt.render("1", config.load(overrides))
    assert "\n" not in str(error.value)
