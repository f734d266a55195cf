"""A sweep against a provider that fails in every way, killed in the middle: its bill and the Parquet tell the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from pkb.store import reader
from tests.generate.server import Reply, Server, answer, error, stream

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-the-provider-s-own"
PROBLEMS, ATTEMPTS = 4, 8
INPUT, CACHED, OUTPUT = 2.0, 0.5, 8.0  # dollars per million tokens
MODELS = """
documents: &common
  model: openai/documents
  api_base: URL
  key_env: RECONCILED_KEY
  prices: {input: 2.0, cached_input: 0.5, output: 8.0}
streams:
  <<: *common
  model: openai/streams
  stream: true
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Entry:
    """What the provider writes down about a request. usage: billed, and told to a client that reads to the end, which may come
    after an end that says it failed."""

    outcome: str
    key: str
    usage: dict | None = None
    cut: bool = False

    @property
    def tokens(self):
        return self.usage["total_tokens"]

    @property
    def cost(self):
        cached = self.usage["prompt_tokens_details"]["cached_tokens"]
        fresh = self.usage["prompt_tokens"] - cached
        return (fresh * INPUT + cached * CACHED + self.usage["completion_tokens"] * OUTPUT) / 1e6


class Provider:
    """Answers in prose, so that nothing needs judging; no two answers cost the same. filters: whether its filter is on."""

    def __init__(self):
        self.ledger = {}
        self.filters = True
        self._random = random.Random(8)

    def __call__(self, request):
        assert request.headers["authorization"] == f"Bearer {KEY}"
        name, number = f"req-{request.number}", request.number
        headers = {"x-request-id": name}
        draw = self._random.random()
        entry = Entry("", request.headers["idempotency-key"])
        self.ledger[name] = entry
        if draw < 0.10:
            entry.outcome = "429"
            return error(429, headers={**headers, "retry-after": "0.2"})
        if draw < 0.15:
            entry.outcome = "500"
            return error(500, headers=headers)
        entry.usage = {
            "prompt_tokens": 1000 + number,
            "completion_tokens": 200 + 3 * number,
            "total_tokens": 1200 + 4 * number,
            "prompt_tokens_details": {"cached_tokens": number},
        }
        finish = "stop" if draw < 0.7 else "length" if draw < 0.85 else "content_filter" if self.filters else "stop"
        if draw > 0.95:
            finish = "error"
        entry.outcome = finish
        slow = self._random.uniform(0.1, 1.5)
        text = f"I would rather describe it. ({name})"
        if request.body.get("stream"):
            reply = stream([text], finish, entry.usage)
            reply = replace(reply, headers={**reply.headers, **headers}, before=slow)
        else:
            reply = answer(text, finish, entry.usage)
            reply = replace(reply, headers={**reply.headers, **headers}, before=slow)
        if draw < 0.22:
            entry.outcome, entry.cut = "cut", True
            *whole, last = reply.chunks[:2]
            return Reply(200, reply.headers, (*whole, last[:20]), then="reset", length=len(last), before=slow)
        return reply


@pytest.fixture
def sweep(tmp_path):
    """Starts the sweep; always with the same command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECONCILED_KEY": KEY}
    settings = ["models=[models.yaml]", f"problems=[1-{PROBLEMS}]", f"attempts={ATTEMPTS}", "run_dir=run"]
    settings += ["generation.retry_seconds=0.05", "generation.retry_cap_seconds=0.2", "generation.max_in_flight=12"]
    settings += ["generation.max_retries=50", "generation.outage_failures=1000"]

    def start(server):
        (tmp_path / "models.yaml").write_text(MODELS.replace("URL", server.url))
        with open(tmp_path / "out", "ab") as out:
            command = [sys.executable, "-m", "pkb", "sweep", *settings]
            return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True)

    return start


def rows_of(run):
    return reader.scan(run, "generations").collect() if (run / "generations").is_dir() else pl.DataFrame()


def test_every_paid_answer_is_there_once_and_every_billed_token_is_accounted_for(sweep, tmp_path):
    run, provider = tmp_path / "run", Provider()
    with Server(provider) as server:
        first = sweep(server)
        deadline = time.monotonic() + 180
        while rows_of(run).height < 10 or len(server.requests) < 30:
            assert first.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
            time.sleep(0.05)
        first.kill()
        first.wait()
        before = rows_of(run)
        assert sweep(server).wait(240) == 1, (tmp_path / "out").read_text()  # some answers were filtered
        assert "filtered" in rows_of(run)["status"].to_list()
        provider.filters = False
        assert sweep(server).wait(240) == 0, (tmp_path / "out").read_text()
        requests = {f"req-{request.number}": request for request in server.requests}
    rows, ledger = rows_of(run), provider.ledger
    keys = ["model", "problem", "attempt", "turn"]
    assert rows.height == rows.select(keys).unique().height == 2 * PROBLEMS * ATTEMPTS
    kept = before.filter(pl.col("status").is_in(["ok", "truncated"])).select(*keys, "request_id")
    assert kept.join(rows, on=[*keys, "request_id"], how="anti").is_empty(), "an answer was asked for again"

    usage = [json.loads(text) for text in rows["usage"]]
    failed = [try_ for u in usage for try_ in u.get("failed_tries", [])]
    lost = [try_["idempotency_key"] for try_ in failed if try_["kind"] == "lost"]
    named = rows["request_id"].to_list() + [try_["request_id"] for try_ in failed if try_["kind"] != "lost"]
    assert len(set(named)) == len(named) == rows["tries"].sum() - len(lost)
    for row in rows.iter_rows(named=True):
        assert ledger[row["request_id"]].outcome == {"ok": "stop", "truncated": "length"}[row["status"]]
        assert row["request_id"] in row["answer"]
    unnamed = [name for name in requests if name not in named]
    unnamed_keys = [ledger[name].key for name in unnamed]
    assert len(set(unnamed_keys)) == len(unnamed_keys), "a question asked twice at once"
    assert set(unnamed_keys) <= set(lost), "a request that no row tells of"  # of the lost, some had not gone out yet
    assert 1 <= len(unnamed) <= 12  # those in flight when the driver was killed

    told = [ledger[name] for name in named if ledger[name].usage and not ledger[name].cut]
    assert sum(u["billed_tokens"] for u in usage) == sum(entry.tokens for entry in told)
    assert rows["cost_usd"].sum() == pytest.approx(sum(entry.cost for entry in told))
    cut = {name for name in named if ledger[name].cut}
    assert cut and cut == {try_["request_id"] for try_ in failed if try_["kind"] in ("connection", "malformed")}
    assert {"429", "500", "error", "content_filter"} <= {ledger[name].outcome for name in named}
    assert KEY not in (tmp_path / "out").read_text()
    assert not any(KEY.encode() in path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert [path.name for path in (run / "spool").glob("*.calls")] == []


def test_an_interrupt_waits_for_what_is_paid_for_and_a_second_one_does_not(sweep, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    slow = {"seconds": 4.0}
    with Server(lambda request: replace(answer("In prose."), before=slow["seconds"])) as server:

        def interrupted_with_calls_under_way():
            before = len(server.requests)
            session = sweep(server)
            deadline = time.monotonic() + 120
            while len(server.requests) < before + 4:
                assert session.poll() is None and time.monotonic() < deadline, out.read_text()
                time.sleep(0.05)
            session.send_signal(signal.SIGINT)
            return session

        assert interrupted_with_calls_under_way().wait(60) == 130
        paid = len(server.requests)
        assert not any(request.left_early for request in server.requests)
        assert "waiting for" in out.read_text() and "the same command continues this run" in out.read_text()
        slow["seconds"] = 600.0
        session = interrupted_with_calls_under_way()
        while "interrupt again" not in out.read_text().partition("the same command continues")[2]:
            assert session.poll() is None
            time.sleep(0.05)
        session.send_signal(signal.SIGINT)
        assert session.wait(60) == 130
        left = len(server.requests) - paid
        slow["seconds"] = 0.0
        assert sweep(server).wait(240) == 0, out.read_text()
    rows = rows_of(run)
    assert rows.height == 2 * PROBLEMS * ATTEMPTS and set(rows["status"]) == {"ok"}
    assert len(server.requests) == rows.height + left == rows["tries"].sum()
