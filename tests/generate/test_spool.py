"""A process that dies after an answer has arrived: the answer is not paid for twice."""

import io
import os
import subprocess
import sys
import textwrap

import pytest

from pkb.config import BudgetConfig
from pkb.generate.budget import Spent
from pkb.generate.spool import Spool
from tests.generate.conftest import KEY, ask, faster, model_at
from tests.generate.server import CODE, Reply, Server, answer, completion, error, json_reply, stream

#: Asks one question like a driver; with the argument "die" it is killed where an answer has arrived and no row exists.
DRIVER = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from pkb.config import GenerationConfig
    from pkb.generate import client
    from pkb.generate.models import Model
    from pkb.records import AttemptKey

    url, spool, streamed, die = sys.argv[1:]
    if die:
        client.judge = lambda reply, record: os.kill(os.getpid(), signal.SIGKILL)
    model = Model("m", "openai/m", api_base=url, key_env="TEST_PROVIDER_KEY", stream=bool(streamed))

    async def main():
        asked = client.Client(GenerationConfig(), [model], spool=Path(spool))
        found = await asked.generate(model, AttemptKey("run", "m", "001_allreduce", 0), [{"role": "user", "content": "x"}])
        print(found.status, found.tries, len(found.answer), found.usage["prompt_tokens"], found.request_id, "from_spool" in found.usage)
        asked.forget(found)
        await asked.close()

    asyncio.run(main())
"""


def drive(server, spool, streamed="", die=""):
    environment = {"PYTHONPATH": os.getcwd(), "PATH": os.environ["PATH"], "TEST_PROVIDER_KEY": KEY}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), server.url, str(spool), streamed, die],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def kept(folder, ending=""):
    return [p.name for p in folder.iterdir() if p.name != "identity" and p.name.endswith(ending)]


LONG = CODE + "# and so on\n" * 10_000


@pytest.mark.parametrize("streamed", ["", "1"], ids=["document", "stream"])
@pytest.mark.parametrize("text", [CODE, LONG], ids=["short", "long"])
def test_killed_between_answer_and_row(tmp_path, text, streamed):
    pieces = [text[at : at + 1000] for at in range(0, len(text), 1000)]
    with Server.replying(stream(pieces) if streamed else answer(text)) as server:
        killed = drive(server, tmp_path, streamed, "die")
        assert killed.returncode == -9, killed.stderr
        assert len(kept(tmp_path, ".http")) == len(server.requests) == 1
        again = drive(server, tmp_path, streamed)
    assert again.stdout.split() == ["ok", "1", str(len(text)), "100", "req-1", "True"], again.stderr
    assert len(server.requests) == 1
    assert kept(tmp_path) == []


def test_the_same_question_has_the_same_idempotency_key_until_it_is_refused(tmp_path):
    with Server.replying(answer()) as server:
        drive(server, tmp_path, "", "die")
        for name in kept(tmp_path, ".http"):
            (tmp_path / name).unlink()  # as if it had died before the answer was whole
        drive(server, tmp_path)
    first, second = (r.headers["idempotency-key"] for r in server.requests)
    assert first == second
    with Server.replying(error(503), answer()) as server:
        ask(model_at(server), spool=tmp_path)
    first, second = (r.headers["idempotency-key"] for r in server.requests)
    assert first != second


def test_other_questions_and_runs_have_other_idempotency_keys(tmp_path):
    with Server.replying(answer()) as server:
        model = model_at(server)
        ask((model, 0), (model, 1), spool=tmp_path / "a")
        ask((model, 0), spool=tmp_path / "b")
    assert len({r.headers["idempotency-key"] for r in server.requests}) == 3


def test_a_response_that_did_not_arrive_whole_is_not_kept(tmp_path):
    half = Reply(200, {"content-type": "application/json"}, (b'{"id": "x", ',), then="reset", length=1000)
    with Server.replying(half) as server:
        ask(model_at(server), spool=tmp_path)
    assert kept(tmp_path, ".http") == []


def test_a_response_without_an_answer_is_not_kept(tmp_path):
    with Server.replying(json_reply({**completion(), "choices": []})) as server:
        ask(model_at(server), spool=tmp_path)
        assert len(server.requests) == 4
    assert kept(tmp_path, ".http") == []


def test_what_is_paid_for_is_taken_whatever_the_budget(tmp_path):
    with Server.replying(answer()) as server:
        model = model_at(server)
        ask(model, spool=tmp_path)  # no row was written, so this is what a killed session leaves
        spent = {"m": Spent(5.0, 1000, 10)}
        kept, other = ask((model, 0), (model, 1), spool=tmp_path, budget=BudgetConfig(cost_usd=5.0), earlier=spent)
    assert (kept.status, other.status, len(server.requests)) == ("ok", "provider_error", 1)


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
def test_a_full_disk_costs_the_copy_not_the_answer(tmp_path, monkeypatch, streamed):
    monkeypatch.setattr(Spool, "create", lambda self, path, head: io.FileIO("/dev/full", "wb"))
    with Server.replying(stream() if streamed else answer()) as server:
        (found,) = ask(model_at(server, stream=streamed), spool=tmp_path)
    assert (found.status, found.tries, kept(tmp_path, ".http")) == ("ok", 1, [])


def test_a_response_to_another_prompt_is_not_used(tmp_path):
    with Server.replying(answer()) as server:
        ask(model_at(server), spool=tmp_path)
        ask(model_at(server, max_tokens=77), spool=tmp_path)
    assert len(server.requests) == 2


def test_remains_of_a_killed_process_are_removed_and_files_are_private(tmp_path):
    (tmp_path / "x.part").write_bytes(b"half")
    with Server.replying(answer()) as server:
        model = model_at(server)
        (found,) = ask(model, spool=tmp_path)
    names = kept(tmp_path)
    assert {name.rpartition(".")[2] for name in names} == {"http", "calls"}
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in names)
    from pkb.generate.client import Client
    from tests.generate.conftest import FAST

    Client(FAST, [model], spool=tmp_path).forget(found)
    assert kept(tmp_path) == []


def test_calls_of_a_killed_session_are_in_the_row_of_the_next(tmp_path):
    """One was refused, one was billed without an answer, and of one nobody knows what became."""
    with Server.replying(error(503), answer("half", "error"), answer()) as server:
        assert drive(server, tmp_path, "", "die").returncode == -9  # at the second reply
        for name in kept(tmp_path, ".http"):
            (tmp_path / name).unlink()  # as if it had died before the second reply was whole
        (found,) = ask(model_at(server), spool=tmp_path)
    assert (found.status, found.tries, len(server.requests)) == ("ok", 3, 3)
    refused, lost = found.usage["failed_tries"]
    assert (refused["kind"], refused["status"], lost["kind"]) == ("server", 503, "lost")
    assert lost["idempotency_key"] == server.requests[1].headers["idempotency-key"]


def test_tokens_that_a_killed_session_wasted_are_accounted_for_and_count_into_the_budget(tmp_path):
    once = (80 * 1.0 + 20 * 0.5 + 40 * 10.0) / 1e6
    with Server.replying(answer("half", "error"), answer()) as server:
        model = model_at(server)
        (failed,) = ask(model, spool=tmp_path, config=faster(max_retries=0))  # no row: it was killed before
        (held,) = ask((model, 1), spool=tmp_path, budget=BudgetConfig(cost_usd=once / 2))
        (found,) = ask(model, spool=tmp_path)
    assert failed.status == held.status == "provider_error" and "is used up" in held.error
    assert found.usage["billed_tokens"] == 2 * 140 and found.tries == 2
    assert found.cost_usd == pytest.approx(2 * once) and found.usage["wasted"][0]["completion_tokens"] == 40


def test_an_answer_that_does_not_count_stays_on_the_bill_of_the_next(tmp_path):
    from pkb.generate.client import Client
    from tests.generate.conftest import FAST

    with Server.replying(answer("par", "content_filter"), answer()) as server:
        model = model_at(server)
        (filtered,) = ask(model, spool=tmp_path)
        Client(FAST, [model], spool=tmp_path).forget(filtered)
        (found,) = ask(model, spool=tmp_path)
    assert (filtered.status, found.status, len(server.requests)) == ("filtered", "ok", 2)
    assert [f["kind"] for f in found.usage["failed_tries"]] == ["filtered"]
    assert found.usage["billed_tokens"] == 2 * 140 and found.cost_usd == pytest.approx(2 * filtered.cost_usd)


def test_a_torn_note_is_passed_over(tmp_path):
    with Server.replying(answer()) as server:
        model = model_at(server)
        ask(model, spool=tmp_path)
        (name,) = kept(tmp_path, ".calls")
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b'{"failed": {"ki')
        (found,) = ask(model, spool=tmp_path)
    assert (found.status, found.tries, len(server.requests)) == ("ok", 1, 1)
