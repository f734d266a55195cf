"""Recorded answers: which file answers which question."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pkb.errors import UserError
from pkb.generate import replay
from pkb.generate.models import Model, load_models
from pkb.store.rows import generation_row
from pkb.store.writer import RunStore
from tests.generate.conftest import ask, model_at
from tests.generate.server import Server, answer


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A function that writes one recorded answer of the model ``replay/m``."""
    monkeypatch.setattr(replay, "conf_root", lambda: tmp_path)

    def write(name, text):
        path = tmp_path / "replay" / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


MODEL = Model("shown", "replay/m")


def test_the_most_specific_file_answers(recorded):
    recorded("default.md", "any")
    recorded("001_allreduce/default.md", "one")
    recorded("001_allreduce/1.md", "second")
    recorded("001_allreduce/1-1.md", "second, revised")
    answers = [
        replay.find(MODEL, *asked).answer
        for asked in [
            ("002_allgather", 0, 0),
            ("001_allreduce", 0, 0),
            ("001_allreduce", 1, 0),
            ("001_allreduce", 1, 1),
            ("001_allreduce", 1, 2),
        ]
    ]
    assert answers == ["any", "one", "second", "second, revised", "second"]


def test_nothing_recorded(recorded):
    assert replay.find(MODEL, "001_allreduce", 0, 0) is None


def test_front_matter(recorded):
    recorded("001_allreduce/0.md", "---\nfinish_reason: length\nusage: {completion_tokens: 7}\n---\nText\n---\nmore")
    found = replay.find(MODEL, "001_allreduce", 0, 0)
    assert (found.answer, found.finish_reason, found.usage) == ("Text\n---\nmore", "length", {"completion_tokens": 7})


def test_front_matter_without_end_is_an_error(recorded):
    recorded("default.md", "---\nfinish_reason: length\n")
    with pytest.raises(UserError, match="front matter"):
        replay.find(MODEL, "001_allreduce", 0, 0)


def test_demonstration_models_answer_every_default_question():
    for model in load_models(["demo-fast", "demo-slow", "demo-faulty"]):
        for name in ("001_allreduce", "005_scatter", "008_alltoall"):
            assert all(replay.find(model, name, attempt, 0) for attempt in range(3))


def test_a_run_is_answered_from_its_own_parquet(tmp_path):
    folder = tmp_path / "generations"
    folder.mkdir()
    rows = [
        {
            "model": model,
            "problem": "001_allreduce",
            "attempt": attempt,
            "turn": 0,
            "status": status,
            "answer": f"answer {model} {attempt}",
            "reasoning": "thought",
            "finish_reason": "stop",
            "usage": json.dumps({"completion_tokens": 5}),
            "request_id": "r",
        }
        for model, attempt, status in [("a", 0, "ok"), ("b", 0, "refused"), ("b", 1, "provider_error")]
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    models = load_models([f"replay:{tmp_path}"])
    assert [m.name for m in models] == ["a", "b"]
    assert replay.find(models[0], "001_allreduce", 0, 0).answer == "answer a 0"
    assert replay.find(models[1], "001_allreduce", 0, 0).refusal == "answer b 0"
    assert replay.find(models[1], "001_allreduce", 1, 0) is None


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run directory"):
        load_models([f"replay:{tmp_path}"])


REPLIES = {
    "ok": answer(),
    "truncated": answer("```python\ndef sol", "length"),
    "empty": answer("", "length"),
    "refused": answer(None, refusal="I will not."),
    "filtered": answer("par", "content_filter"),
}


def test_a_run_replays_to_the_same_outcomes_without_a_call(tmp_path):
    """From a provider to Parquet and back."""
    with Server(lambda request: REPLIES[list(REPLIES)[request.number]]) as server:
        model = model_at(server, max_parallel=1)
        first = ask(*[(model, i) for i in range(len(REPLIES))])
    assert sorted(g.status for g in first) == sorted(REPLIES)
    with RunStore(tmp_path) as store:
        store.append("generations", [generation_row(g) for g in first])
    (again,) = load_models([f"replay:{tmp_path}"])
    second = ask(*[(again, i) for i in range(len(REPLIES))])
    for old, new in zip(first, second, strict=True):
        kept = [(g.status, g.answer, g.source, g.extraction) for g in (old, new)]
        assert kept[0] == kept[1]
        assert new.cost_usd == 0.0
