"""Extraction: answers as data, and what no answer may do."""

import ast
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pkb.extract import ExtractionStatus, extract

CASES = yaml.safe_load((Path(__file__).parent / "data" / "extraction.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_answer(case):
    found = extract(case["answer"], case.get("truncated", False))
    assert found.status == case["status"], found
    assert (found.source is not None) == (found.status is ExtractionStatus.OK)
    assert bool(found.reason) == (found.source is None)
    assert case.get("reason", "") in found.reason
    if "source" in case:
        assert found.source == case["source"]
    for part in case.get("contains", []):
        assert part in found.source


def test_there_are_enough_cases_with_distinct_names():
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40


@given(st.text(alphabet="`~ \ndefsolution(x):\"'</think>#\r", max_size=300), st.booleans())
def test_any_text_gives_exactly_one_outcome(answer, truncated):
    found = extract(answer, truncated)
    assert (found.source is not None) == (found.status is ExtractionStatus.OK)
    assert "\n" not in found.reason


@given(st.integers(0, 120))
def test_no_prefix_of_a_block_is_run_as_if_whole(length):
    block = "```python\nimport torch\n\n\ndef solution(x):\n    y = x + 1\n    y = y * 2\n    return y\n```"
    found = extract(block[: min(length, len(block) - 4)], truncated=True)
    assert found.status is ExtractionStatus.TRUNCATED


@pytest.mark.parametrize(
    "hostile",
    [
        "```python\ndef solution(x):\n" + "```\n" * 20_000,
        "<think>" * 20_000,
        "(" * 200_000 + "\ndef solution(x): pass",
        "~~~\n" * 50_000,
        "import x\n" * 3000 + "def solution(x):\n  return (\n" + "y\n" * 3000,
        "```python\n" + "def solution(x):\n  return 1\n" * 20_000 + "(\n```\n" * 20,
        "".join("`" * n + "markdown\n" for n in range(1000, 3, -1)) + "".join("`" * n + "\n" for n in range(4, 1001)),
    ],
    ids=["fences", "thoughts", "nesting", "tildes", "no-fence", "long", "quotations"],
)
def test_a_hostile_answer_costs_little(hostile):
    started = time.process_time()
    extract(hostile, False)
    assert time.process_time() - started < 5.0


def test_large_answers_survive_whole():
    body = "".join(f"def helper_{i}(x):\n    return x + {i}\n\n\n" for i in range(5000)) + "def solution(x):\n    return x\n"
    found = extract(f"Text\n```python\n{body}```\nMore", False)
    assert found.source == body and ast.parse(found.source)
