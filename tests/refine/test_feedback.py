"""Feedback read as an engineer reads it: the fault, the place, what to change; and nothing that it must not say."""

import dataclasses
import itertools

import pytest
import yaml

from pkb import hardware
from pkb.config import Config, conf_root, load
from pkb.evaluate.build import build
from pkb.evaluate.node import Evaluator
from pkb.records import FEEDBACK, Evaluation, Job
from pkb.refine import excerpts, feedback
from pkb.verdict import Stage, Verdict
from tests.evaluate.faulty import candidate

MACHINE = hardware.of(Config())
QUICK = [
    "evaluation.limits.call_seconds=3",
    "evaluation.trials=3",
    "evaluation.timing.iterations=4",
    "evaluation.timing.blocks=3",
    "evaluation.timing.warmup=2",
]


@pytest.fixture(scope="module")
def judge():
    with Evaluator(load(QUICK)) as evaluator:
        yield lambda body, problem="001_allreduce": told(evaluator, candidate(body), problem)


def told(evaluator, source, problem):
    evaluation = evaluator.evaluate(Job(problem, source, 2, "smoke", purpose=FEEDBACK))
    return evaluation, feedback.text(evaluation, source, MACHINE)


def evaluation(verdict, **fields):
    values = {"detail": "why", "stage": Stage.DONE, "world_size": 2, "size": "smoke", "dtype": "bfloat16", "device": "cpu"}
    return Evaluation("001_allreduce", verdict, **{**values, **fields})


def test_a_missing_exchange_is_named_with_its_place(judge):
    _, text = judge("return tensor.clone()")
    assert "equal its own input `tensor`. The data of the other ranks never arrived" in text
    assert "indices [0..63, 0..95] of shape [64, 96]" in text


def test_a_race_says_that_single_calls_were_right_and_which_buffer_to_keep(judge):
    _, text = judge("""
global shared
shared = shared or Shared()
shared.view(shared.rank, tensor).copy_(tensor)
shared.handle.barrier()
return torch.stack([shared.view(r, tensor).float() for r in range(2)]).sum(0).to(tensor.dtype)
""")
    assert "Each call alone was right" in text and "alternate between two buffers" in text


def test_state_that_spoils_later_calls_is_told_apart_from_a_race(judge):
    body = "x = total(tensor).to(tensor.dtype)\nreturn x if shared.calls <= 3 else x + 1"
    found, text = judge(body)  # three trials alone come first
    assert found.verdict is Verdict.NONDETERMINISTIC and found.extra["diagnosis"]["when"] == "when repeated"
    assert "something that stays from call to call" in text


def test_a_deadlock_shows_the_line_that_each_rank_waits_at(judge):
    _, text = judge("everyone(tensor)\nif dist.get_rank() == 0:\n    shared.handle.wait_signal(1)\nreturn tensor")
    assert "rank 0: line 43 of `solution`, inside `wait_signal`" in text and "rank 1: its call had returned" in text
    assert "-> 43 |         shared.handle.wait_signal(1)" in text


def test_an_exception_shows_the_candidate_s_own_lines(judge):
    _, text = judge("x = total(tensor)\nreturn x.view(7, -1)")
    assert "->" in text and "return x.view(7, -1)" in text and "pkb/evaluate" not in text


def test_a_correct_answer_is_told_its_time_its_profile_and_other_mechanisms(judge):
    found, text = judge("return total(tensor).to(tensor.dtype)")
    assert found.verdict is Verdict.CORRECT
    assert "times as fast (95 % interval" in text and "| rank | ms per call | communication |" in text
    assert "pkb.symm.barrier" in text and "Data moves by: copy engine." in text and "also offers: load/store" in text


def test_compiler_errors_point_to_lines_of_the_candidate(tmp_path):
    source = (
        "from torch.utils.cpp_extension import load_inline\nCPP = '''\n#include <cstdint>\nint64_t f(int64_t x) {\n"
        "  return x + y;\n}\n'''\next = load_inline('f', cpp_sources=CPP, functions=['f'], no_implicit_headers=True)\n"
        "def solution(tensor):\n    return tensor\n"
    )
    built = build(source, "cpu", load([f"evaluation.cache_dir={tmp_path}"]))
    text = feedback.text(evaluation(Verdict.COMPILE_ERROR, build_log=built.log), source, MACHINE)
    assert not built.ok and "- line 5: " in text and "->  5 |   return x + y;" in text.replace("-> 5", "->  5")


def test_a_function_that_is_declared_and_never_defined_is_named_with_its_lines():
    source = "SRC = '''\nint helper(int x);\nint f() { return helper(2); }\n'''\n"
    detail = "rank 0: ImportError: lib-0.so: undefined symbol: _Z6helperi"
    text = feedback.text(evaluation(Verdict.LOAD_ERROR, detail=detail), source, MACHINE)
    assert "`helper` is declared or called, but nothing defines it" in text and "-> 2 | int helper(int x);" in text


def test_a_syntax_error_shows_its_line():
    detail = "not Python: invalid syntax (line 2)"
    text = feedback.text(evaluation(Verdict.LOAD_ERROR, detail=detail), "def solution(x):\n    return x +\n", MACHINE)
    assert "-> 2 |     return x +" in text


def test_a_forbidden_collective_is_shown_where_it_is_called():
    source = (
        "import torch.distributed as dist\n# all_reduce(x) is slow\ndef solution(x):\n    dist.all_reduce(x)\n    return x\n"
    )
    detail = "rule collectives=metadata: all_reduce moved floating-point tensors (64 bytes per call)"
    text = feedback.text(evaluation(Verdict.FORBIDDEN, detail=detail), source, MACHINE)
    assert "-> 4 |     dist.all_reduce(x)" in text and "-> 2" not in text and "symmetric memory" in text


def test_what_differs_from_rank_to_rank_only_in_whose_data_it_was_is_said_once():
    found = [{"kind": "other rank", "of": "the output", "share": 1.0, "ranks": [r], "sources": [(r + 1) % 3]} for r in range(3)]
    text = feedback.text(evaluation(Verdict.MISMATCH, extra={"diagnosis": {"findings": found}}), "", MACHINE)
    assert text.count("The right data was exchanged") == 1
    assert "The same holds on rank 1 with rank 2 in that place; on rank 2 with rank 0 in that place." in text


@pytest.mark.parametrize(("options", "added"), [("no_implicit_headers=True", 0), ("functions=['f']", 1)])
def test_of_equal_lines_the_one_is_shown_that_the_compiler_means(options, added):
    source = (
        'SRC = r"""\nint f(int x) {\n  int y = 1;\n  return x * y;\n}\nint g(int x) {\n  return x * y;\n}\n"""\n'
        f"ext = load_inline('f', cpp_sources=SRC, {options})\n"
    )
    log = f"main.cpp:{7 + added}:14: error: 'y' was not declared in this scope\n    {7 + added} |   return x * y;\n"
    (place,) = excerpts.compiler_errors(log, source)
    assert (place.line, source.split("\n")[place.line - 2]) == (7, "int g(int x) {")


def test_nvcc_errors_are_understood():
    log = 'cuda.cu(12): error: identifier "blokDim" is undefined\n    int i = blokDim.x;\n            ^\n\n1 error detected'
    source = "SRC = '''\nint i = blokDim.x;\n'''\n"
    (place,) = excerpts.compiler_errors(log, source)
    assert (place.line, place.message) == (2, 'identifier "blokDim" is undefined')


def test_no_number_of_the_expected_output_is_said_beyond_the_first_and_no_key(judge):
    found, text = judge("return tensor * 3")
    assert text.count("expected ") == 1 and "0x" not in text
    keys = {len(word) for word in text.split() if all(c in "0123456789abcdef" for c in word)}
    assert not any(length >= 16 for length in keys)
    assert found.extra["diagnosis"].keys() <= {
        "when",
        "variant",
        "version",
        "kinds",
        "findings",
        "wrong",
        "outputs",
        "arguments",
    }


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_words(verdict):
    text = feedback.text(evaluation(verdict), "def solution(tensor): ...\n", MACHINE)
    assert "$" not in text and "```python" in text


def test_every_finding_has_words_without_open_places():
    words = yaml.safe_load((conf_root() / "prompts" / "feedback" / "findings.yaml").read_text())
    where = {"share": 0.5, "shape": [4, 4], "box": [[0, 3], [1, 2]]}
    moved = [{"block": 0, "holds": {"of": "output", "rank": 1, "block": 2}, "belongs": {"of": "input `x`", "rank": 0}}]
    for key, sources in itertools.product(words, ([0], [1, 2])):
        kind, _, sub = key.partition("/")
        finding = {"kind": kind, "ranks": [0, 1], "share": 0.4, "dim": 0, "dims": [0, 1], "distance": 1, "world_size": 2}
        finding |= {
            "of": "something",
            "how": "in reverse",
            "factor": "2",
            "moved": moved,
            "relative": 0.02,
            "by": 2,
            "sources": sources,
        }
        if kind == "interleaved":
            finding["rank_major"] = sub == "rank_major"
        elif sub == "inside":
            finding["inside"] = True
        elif sub:
            finding[{"nan": "origin", "stale": "which", "deadlock": "meeting"}[kind]] = sub
        diagnosis = {"when": "in isolation", "findings": [finding], "outputs": {"0": {"output": "output", "where": where}}}
        text = feedback.text(evaluation(Verdict.MISMATCH, extra={"diagnosis": diagnosis}), "", MACHINE)
        assert "$" not in text and len(text.split("\n\n")) >= 4


def test_dollar_signs_of_a_candidate_s_words_do_no_harm():
    text = feedback.text(evaluation(Verdict.LOAD_ERROR, detail="rank 0: $detail ${x} $"), None, MACHINE)
    assert "$detail ${x} $" in text


def test_a_model_is_told_its_best_answer_so_far():
    standing = feedback.Standing(best=(2, "correct, 1.4 times as fast as the reference"))
    text = feedback.text(evaluation(Verdict.MISMATCH), "", MACHINE, standing)
    assert "Your best answer so far is turn 2 (correct, 1.4 times" in text


def test_a_profile_of_devices_names_gaps_and_one_of_cpu_ranks_says_what_idle_is():
    rank = {"rank": 0, "call_ms": 1.0, "communication": 0.5, "compute": 0.2, "overlapped": 0.1, "fused": 0.0, "idle": 0.4}
    rank["top"] = [{"name": "k", "kind": "compute", "share": 0.2, "count": 1.0}]
    said = []
    for gaps in (None, {"count": 3.0, "median_us": 4.0, "longest_us": 9.5}):
        profile = {"calls": 5, "ranks": [{**rank, "gaps": gaps}]}
        said.append(feedback.text(evaluation(Verdict.CORRECT, extra={"profile": profile}), "", MACHINE))
    assert "outside PyTorch's operators" in said[0] and "gaps" not in said[0]
    assert "| idle |" in said[1] and "3 gaps per call" in said[1] and "the longest 9.5 us" in said[1]


def test_excerpts_mark_lines_and_show_gaps():
    source = "\n".join(f"line {i}" for i in range(1, 21))
    text = excerpts.excerpt(source, [2, 18], around=1)
    assert text.split("\n") == [
        "    1 | line 1",
        "->  2 | line 2",
        "    3 | line 3",
        "   ...",
        "   17 | line 17",
        "-> 18 | line 18",
        "   19 | line 19",
    ]


def test_a_bound_is_said_where_it_means_something():
    timed = evaluation(Verdict.CORRECT, speedup=1.5, speedup_low=1.4, speedup_high=1.6, reference_ms=3.0, candidate_ms=2.0)
    large = dataclasses.replace(timed, device="cuda", size="production", world_size=8)
    text = feedback.text(large, "", hardware.load("h200"))
    assert "No implementation can take less than" in text and "nvls" in text and "tma" in text
    small = feedback.text(timed, "", MACHINE)
    assert "No implementation" not in small and "the time here is latency" in small
