"""The audit: what it tries, and that it reports what a problem accepts."""

from __future__ import annotations

import pytest
import torch

from pkb import config, problem
from pkb.evaluate import vacuous
from pkb.evaluate.audit import audit

CHOSEN = ["001", "006", "026", "058"]


@pytest.fixture(scope="module")
def found():
    settings = config.load(["ranks=2"], "default")
    return {f["problem"][:3]: f for f in audit([problem.resolve(i) for i in CHOSEN], settings)["problems"]}


@pytest.mark.parametrize("ident", CHOSEN)
def test_no_answer_that_skips_the_work_is_accepted(found, ident):
    assert found[ident]["accepted"] == []
    assert len(found[ident]["tried"]) > 20


def test_what_is_accepted_is_reported(found):
    # one loss averaged over all pairs of texts: 8-bit texts change it by less than its rounding to bfloat16
    assert found["058"]["lossy"] == ["peers' data in 8 bits"]


def test_required_kinds_are_tried_where_they_differ_from_the_contract(found):
    assert {
        "zeros",
        "uninitialised memory",
        "its inputs",
        "remembered from the first call",
        "local data only (copies)",
        "without compute",
        "right on rank 0 only",
        "right in the first call only",
        "right for the first shape only",
        "three digits",
    } <= set(found["058"]["tried"])
    assert "without compute" not in found["001"]["tried"]  # nothing is computed beside the collective


def test_rejections_name_the_trial_and_what_was_wrong(found):
    assert found["001"]["rejected"]["local data only (copies)"].startswith("trial 0, rank 0: output[")


def test_skipped_functions_keep_shapes_and_lose_values():
    def solve(x, w):
        return torch.softmax(x @ w, -1)

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    call = vacuous.Call(0, [x, w], torch.empty(3, 5), frozenset(), 0, 1, solve, {})
    answer = vacuous.without_compute(("products", "normalisations"))(call)
    assert call.differs
    assert answer.shape == (3, 5)
    assert torch.equal(answer.reshape(-1)[:12], x.reshape(-1))


def test_an_answer_that_changes_nothing_does_not_count_as_tried():
    call = vacuous.Call(0, [torch.ones(3)], torch.ones(3), frozenset(), 0, 1, lambda x: x.round(), {})
    vacuous.three_digits(call)
    assert not call.differs
