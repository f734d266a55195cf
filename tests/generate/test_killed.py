"""The asking side of a driver, killed at random moments: every question one row, no answer bought twice that had arrived."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import polars as pl
import pytest

from pkb.store import reader
from tests.generate.conftest import KEY
from tests.generate.server import CODE, Reply, Server, completion, error, json_reply

QUESTIONS, IN_FLIGHT = 120, 16
ASKER = """
    import asyncio, sys
    from pathlib import Path
    from pkb.config import GenerationConfig
    from pkb.generate.client import Client
    from pkb.generate.models import Model
    from pkb.records import AttemptKey
    from pkb.store import reader
    from pkb.store.rows import generation_row
    from pkb.store.writer import RunStore
    from pkb.sweep.recorder import Recorder

    url, run = sys.argv[1], Path(sys.argv[2])
    model = Model("m", "openai/m", api_base=url, key_env="TEST_PROVIDER_KEY")

    async def main():
        with RunStore(run) as store:
            recorder = Recorder(store)
            recording = asyncio.create_task(recorder.run())
            done = set(reader.done_keys(run, "generations")["attempt"].to_list())
            config = GenerationConfig(max_in_flight=IN_FLIGHT, retry_seconds=0.05, max_rate_limited=1000)
            client = Client(config, [model], spool=run / "spool")
            places = asyncio.Semaphore(IN_FLIGHT)

            async def one(attempt):
                async with places:
                    key = AttemptKey("run", "m", "001_allreduce", attempt)
                    found = await client.generate(model, key, [{"role": "user", "content": f"question {attempt}"}])
                    await recorder.record("generations", generation_row(found), "logs/m.jsonl")
                    client.forget(found)

            print("started", flush=True)
            await asyncio.gather(*(one(a) for a in range(QUESTIONS) if a not in done))
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)
            await recorder.drain()
            await client.close()

    asyncio.run(main())
"""


def reply(request):
    draw = random.random()
    if draw < 0.1:
        return error(429, headers={"retry-after": "0.05"})
    if draw < 0.13:
        return Reply(200, {"content-type": "application/json"}, (b'{"id": ',), then="reset", length=999)
    body = {**completion(f"{request.body['messages'][0]['content']}\n{CODE}"), "id": f"c{request.number}"}
    return json_reply(body, headers={"x-request-id": f"req-{request.number}"}, before=random.uniform(0.05, 0.5))


@pytest.mark.slow
def test_reconciles_with_the_servers_log(tmp_path):
    environment = {"PYTHONPATH": os.getcwd(), "PATH": os.environ["PATH"], "TEST_PROVIDER_KEY": KEY}
    code = textwrap.dedent(ASKER).replace("IN_FLIGHT", str(IN_FLIGHT)).replace("QUESTIONS", str(QUESTIONS))
    command = [sys.executable, "-c", code]
    kills = 0
    with Server(reply) as server:
        for session in range(4):
            asker = subprocess.Popen([*command, server.url, str(tmp_path)], env=environment, stdout=subprocess.PIPE)
            assert asker.stdout.readline() == b"started\n"
            before = len(server.requests)
            if session < 3:
                deadline = time.monotonic() + 30  # some way into the work, measured in requests
                while len(server.requests) < before + random.randint(20, 35) and asker.poll() is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                asker.send_signal(signal.SIGKILL)
                kills += 1
            assert asker.wait(120) in (0, -signal.SIGKILL)
        log = list(server.requests)
    rows = reader.scan(tmp_path, "generations").sort("attempt").collect()
    assert rows["attempt"].to_list() == list(range(QUESTIONS))
    assert set(rows["status"]) == {"ok"}
    for row in rows.iter_rows(named=True):
        assert row["answer"].startswith(f"question {row['attempt']}\n")
    ids = rows["request_id"].to_list()
    assert len(set(ids)) == QUESTIONS and set(ids) <= {f"req-{r.number}" for r in log}
    tried = rows.select(pl.col("usage").str.json_decode(pl.Struct({"failed_tries": pl.List(pl.Struct({"kind": pl.String}))})))
    # A call is noted before it goes out: one that was lost with its process may never have reached the server.
    failed = sum(try_["kind"] != "lost" for u in tried["usage"].to_list() for try_ in u["failed_tries"] or [])
    # What the server saw: one request per row, the failed tries, and what was under way when the process was killed.
    assert QUESTIONS + failed <= len(log) <= QUESTIONS + failed + kills * 3 * IN_FLIGHT
    # Killed between a durable row and word of it, a response stays behind; it is never used.
    assert len(list((tmp_path / "spool").glob("*.http"))) <= kills * IN_FLIGHT
