"""``pkb sweep`` as users run it: real Ray, real ranks, recorded answers; killed, continued, interrupted, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from pkb.store import reader

ROOT = Path(__file__).resolve().parents[2]
DEMO = ["problems=[1]", "attempts=1"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def pkb(tmp_path):
    """Runs the command in an empty folder with a cache of its own and an API key that must not travel."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OPENAI_API_KEY": "sk-must-not-travel",
    }

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "pkb", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def finish(process):
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.05)


def judged(run):
    return reader.done_keys(run, "evaluations") if (run / "evaluations").is_dir() else pl.DataFrame({"model": []})


def ray_processes():
    """pid -> environment of every process of Ray on this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                if b"ray::" in command or b"raylet" in command or b"gcs_server" in command or b"ray_process" in command:
                    found[int(entry.name)] = (entry / "environ").read_bytes()
            except OSError:
                continue
    return found


def test_killed_at_any_moment_the_same_command_continues(pkb, tmp_path):
    """SIGKILL after the first verdict, then again while the second session starts; the third completes it."""
    run = tmp_path / "run"
    command = ["sweep", "run_dir=run", *DEMO]
    before = set(ray_processes())
    first = pkb(*command)
    wait_for(lambda: judged(run).height >= 1, first)
    ours = {pid: environ for pid, environ in ray_processes().items() if pid not in before}
    assert ours and not any(b"must-not-travel" in environ for environ in ours.values()), "a key reached a process of Ray"
    first.kill()
    first.communicate()
    seen = judged(run)
    second = pkb(*command)
    wait_for(lambda: (run / "ray.log").exists(), second)
    second.kill()
    second.communicate()
    code, out, err = finish(pkb(*command))
    assert code == 0, err
    assert "demo-fast" in out and "pass@1" in out and "run directory: run" in out
    for table in ("generations", "evaluations"):
        rows = pl.read_parquet(run / table / "part-*.parquet")
        assert rows.height == rows.select("model", "problem", "attempt", "turn").unique().height == 3
    verdicts = dict(judged(run).select("model", "outcome").rows())
    assert verdicts == {"demo-fast": "correct", "demo-slow": "correct", "demo-faulty": "mismatch"}
    assert set(seen.rows()) <= set(judged(run).rows())
    again = finish(pkb(*command))
    assert again[0] == 0 and "all 3 attempts are judged" in again[1]
    status = json.loads(finish(pkb("status", "run", "--json"))[1])
    assert status["complete"] and status["writer"] is None and status["done"] == 3
    deadline = time.monotonic() + 30
    while left := set(ray_processes()) & set(ours):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_interrupting_stops_cleanly_and_says_how_to_go_on(pkb, tmp_path):
    run = tmp_path / "run"
    process = pkb("sweep", "run_dir=run", *DEMO)
    wait_for(lambda: (run / "generations").is_dir() and reader.done_keys(run, "generations").height == 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, err = finish(process)
    assert code == 130 and "the same command continues" in err
    assert "Traceback" not in err
    assert sorted(p.name for p in (run / "generations").iterdir()) == ["part-000001.parquet"]


def test_what_a_run_directory_or_a_model_forbids_is_said_before_anything_is_written(pkb, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("x")
    for arguments, named in [
        (["run_dir=thesis"], "thesis"),
        (["models=[no-such-model]", "run_dir=new"], "no-such-model"),
        (["problems=[400]", "run_dir=new"], "400"),
        (["cluster.address=127.0.0.1:1", "run_dir=new", "size.M=banana"], "banana"),
    ]:
        code, out, err = finish(pkb("sweep", *arguments))
        assert code == 2 and named in err and len(err.splitlines()) == 1 and out == "", (arguments, err)
    assert not (tmp_path / "new").exists() and len(list((tmp_path / "thesis").iterdir())) == 1


def test_what_earlier_sessions_spent_includes_calls_that_were_cut_off(tmp_path):
    from pkb.records import AttemptKey, Generation
    from pkb.store.rows import generation_row
    from pkb.store.writer import RunStore
    from pkb.sweep import command, plan
    from pkb.verdict import GenerationStatus

    def row(attempt, status, cost, **usage):
        key = AttemptKey("run", "m", "001_allreduce", attempt)
        return generation_row(Generation(key, status, "p", "h", cost_usd=cost, usage=usage))

    cut = {"tokens": 50, "cost_usd": 0.5}
    rows = [
        row(0, GenerationStatus.OK, 1.0, billed_tokens=100),
        row(1, GenerationStatus.OK, 2.0, billed_tokens=200, estimated_wasted=cut),
        row(2, GenerationStatus.PROVIDER_ERROR, None, billed_tokens=0, estimated_wasted=cut),
        row(3, GenerationStatus.PROVIDER_ERROR, None, billed_tokens=0, estimated_wasted={"tokens": 0, "cost_usd": None}),
    ]
    with RunStore(tmp_path) as store:
        store.append("generations", rows)
    spent = command._spent(tmp_path)["m"]
    assert (spent.cost_usd, spent.tokens, spent.calls) == (4.0, 400, 4)
    made = plan.make(tmp_path, "run", ["m"], ["001_allreduce"], 4)
    # Both are asked again; the row that tells of money stays until then.
    assert [key.attempt for key in made.retry_generations] == [3]
    assert [key.attempt for key in made.to_generate("m")] == [2, 3]
