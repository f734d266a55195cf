"""No honest kernel is accused: every technique that the field uses ends ``correct``, whatever the category."""

from __future__ import annotations

import pytest

from tests.evaluate import fixtures, over_symm
from tests.evaluate.conftest import Node

HONEST = fixtures.load("honest")
#: One or two problems of each category.
ACROSS = [4, 8, 9, 15, 18, 22, 26, 31, 35, 40, 43, 47, 54, 58, 60, 63, 66, 70, 73, 80, 85, 87]


@pytest.mark.parametrize("fixture", [f for f in HONEST if f.head.get("device") != "cuda"], ids=lambda f: f.name)
def test_honest_technique_is_correct(node, fixture):
    dtype = fixture.head.get("dtype", "bfloat16")
    found = node.judge(
        fixture.source, fixture.head["problem"], "evaluation.limits.call_seconds=60", *fixture.overrides, dtype=dtype
    )
    assert found.verdict == "correct", f"{found.verdict}: {found.detail}"


@pytest.mark.parametrize("ident", ACROSS)
def test_reference_over_symmetric_memory_is_correct(node, ident):
    found = node.judge(over_symm.candidate(ident), ident, "evaluation.limits.call_seconds=30")
    assert found.verdict == "correct", f"{found.verdict}: {found.detail}"
    assert found.collective_bytes <= 4096


@pytest.mark.slow
def test_torch_compile_is_correct():
    """Compilers run and write files in the first calls, when shapes change, and when calls are observed."""
    node = Node("evaluation.limits.call_seconds=60", f"evaluation.limits.scratch_bytes={1 << 30}")
    with node.evaluator:
        found = node.judge((fixtures.ROOT / "compiles.py").read_text(encoding="utf-8"))
    assert found.verdict == "correct", f"{found.verdict}: {found.detail}"
