"""Isolation where the system refuses namespaces, and what is refused when that is not enough."""

from __future__ import annotations

import pytest

from pkb import config
from pkb.errors import UserError
from pkb.evaluate import sandbox
from pkb.evaluate.node import Evaluator
from tests.evaluate import fixtures
from tests.evaluate.conftest import Node

CHOSEN = (
    "theft/peer_memory",
    "sabotage/signals_parent",
    "sabotage/new_namespaces",
    "sabotage/writes_outside",
    "sabotage/daemon_outlives",
    "sabotage/kills_itself",
    "substitution/alias",
)


@pytest.fixture(scope="module")
def weak(tmp_path_factory):
    """A node that has nothing better than the level ``process``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "available", lambda: "process")
        node = Node(f"evaluation.cache_dir={tmp_path_factory.mktemp('builds')}")
        with node.evaluator:
            yield node


@pytest.mark.parametrize("fixture", [f for f in fixtures.load("exploits") if f.name in CHOSEN], ids=lambda f: f.name)
def test_exploits_gain_nothing_without_namespaces(weak, fixture):
    found = weak.judge(fixture.source, fixture.head["problem"])
    assert str(found.verdict) in fixture.head["verdict"].split(", "), f"{found.verdict}: {found.detail}"
    assert fixture.head.get("detail", "") in found.detail
    assert found.sandbox == "process"


def test_honest_work_is_correct_without_namespaces(weak, allreduce):
    found = weak.judge(allreduce)
    assert (found.verdict, found.sandbox) == ("correct", "process"), found.detail


def test_nothing_is_left_behind_without_namespaces(weak):
    assert weak.left_behind() == []


def test_less_isolation_than_required_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "available", lambda: "process")
    with pytest.raises(UserError, match=r"sandbox\.require=namespaces"):
        Evaluator(config.load(["sandbox.require=namespaces"]))


def test_references_installed_beside_the_checkout_are_hidden(node, tmp_path, monkeypatch):
    copy = tmp_path / "pkb" / "_data" / "problems"
    copy.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert str(copy) in node.evaluator._hidden()
