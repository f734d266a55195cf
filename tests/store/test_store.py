"""The store's promises: a row is durable when append returns, counted once, and whole, whatever kills the writer."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pkb.errors import UserError
from pkb.records import AttemptKey, Evaluation, Generation
from pkb.store import layout, reader, rows
from pkb.store.schema import EVALUATIONS, GENERATIONS, SCHEMA_VERSION
from pkb.store.writer import RunStore
from pkb.verdict import GenerationStatus, Stage, Verdict

PROBLEM = "001_allreduce"


def evaluation(attempt, verdict=Verdict.CORRECT):
    key = AttemptKey("run", "model", PROBLEM, attempt)
    record = Evaluation(PROBLEM, verdict, "detail", Stage.DONE, 2, "smoke", "bfloat16", "cpu")
    return rows.evaluation_row(key, record)


def attempts(run, table="evaluations"):
    return sorted(reader.done_keys(run, table)["attempt"].to_list())


def test_schema_and_records_name_the_same_columns():
    """A column added to one of them only would be lost or refused; SCHEMA_VERSION 1 has exactly these."""
    generation = rows.generation_row(
        Generation(AttemptKey("r", "m", PROBLEM, 0), GenerationStatus.OK, "prompt", "hash", usage={"input": 1})
    )
    assert set(generation) == set(GENERATIONS.names)
    assert set(evaluation(0)) == set(EVALUATIONS.names)
    assert (SCHEMA_VERSION, len(GENERATIONS), len(EVALUATIONS)) == (1, 21, 33)


def test_a_generation_survives_the_way_to_disk_and_back(tmp_path):
    key = AttemptKey("run", "model", PROBLEM, 2, 1)
    record = Generation(
        key,
        GenerationStatus.TRUNCATED,
        "prompt",
        "hash",
        answer="ünï\n",
        usage={"input": 3},
        sent={"max_tokens": 5},
        cost_usd=0.25,
    )
    with RunStore(tmp_path) as store:
        store.append("generations", [rows.generation_row(record)])
        assert rows.generation_of(reader.scan(tmp_path, "generations").collect().to_dicts()[0]) == record
    assert rows.generation_of(reader.scan(tmp_path, "generations").collect().to_dicts()[0]) == record


def test_text_that_has_no_utf8_form_is_stored_with_the_offence_replaced(tmp_path):
    row = evaluation(0)
    bad = dataclasses.replace(
        Evaluation(PROBLEM, Verdict.MISMATCH, "a\ud800b", Stage.DONE, 2, "smoke", "bfloat16", "cpu"), extra={"x": "\ud800"}
    )
    row = rows.evaluation_row(AttemptKey("run", "m", PROBLEM, 0), bad)
    with RunStore(tmp_path) as store:
        store.append("evaluations", [row])
    assert reader.scan(tmp_path, "evaluations").collect()["detail"].to_list() == ["a?b"]


def test_parts_hold_at_most_a_thousand_rows_and_closing_leaves_only_parts(tmp_path):
    with RunStore(tmp_path) as store:
        for start in range(0, 2400, 80):
            store.append("evaluations", [evaluation(i) for i in range(start, start + 80)])
    files = sorted(p.name for p in (tmp_path / "evaluations").iterdir())
    counts = [pq.read_metadata(tmp_path / "evaluations" / name).num_rows for name in files]
    assert all(name.endswith(".parquet") for name in files) and max(counts) <= 1000 and sum(counts) == 2400
    assert attempts(tmp_path) == list(range(2400))


def test_restarts_fill_the_last_part_instead_of_leaving_a_trail_of_small_ones(tmp_path):
    for start in range(0, 50, 5):
        with RunStore(tmp_path) as store:
            store.append("evaluations", [evaluation(i) for i in range(start, start + 5)])
    assert len(list((tmp_path / "evaluations").iterdir())) == 1
    assert attempts(tmp_path) == list(range(50))


def test_rows_are_read_while_they_are_being_written(tmp_path):
    with RunStore(tmp_path) as store:
        assert reader.done_keys(tmp_path, "evaluations").height == 0
        store.append("evaluations", [evaluation(i) for i in range(1003)])
        store.append("evaluations", [evaluation(1003)])
        assert attempts(tmp_path) == list(range(1004))


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test may run on."""


def test_a_kill_between_any_two_system_calls_loses_and_doubles_nothing(tmp_path, monkeypatch):
    """Die at the n-th file operation, for every n, in a session that appends, seals a part and continues one."""
    real = {name: getattr(os, name) for name in ("write", "fsync", "replace", "unlink", "ftruncate")}
    monkeypatch.setattr(layout, "PART_ROWS", 6)
    monkeypatch.setattr("pkb.store.writer.PART_ROWS", 6)
    survived_whole = False
    step = 0
    while not survived_whole:
        step += 1
        run = tmp_path / str(step)
        with RunStore(run) as store:
            store.append("evaluations", [evaluation(i) for i in range(3)])
        acknowledged, left = list(range(3)), step

        def interrupted(name):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left == 0:
                    if name == "write":
                        real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
                    raise Killed
                return real[name](*args, **kwargs)

            return call

        store = RunStore(run)
        for name in real:
            monkeypatch.setattr(os, name, interrupted(name))
        try:
            for i in range(3, 14):
                store.append("evaluations", [evaluation(i)])
                acknowledged.append(i)
            store.close()
            survived_whole = True
        except Killed:
            pass
        for name, function in real.items():
            monkeypatch.setattr(os, name, function)
        if store._lock >= 0:
            os.close(store._lock)
            store._lock = -1
        seen = attempts(run)
        assert len(seen) == len(set(seen)) and set(acknowledged) <= set(seen) <= {*acknowledged, len(acknowledged)}, step
        with RunStore(run) as again:
            assert attempts(run) == seen
            again.append("evaluations", [evaluation(99)])
        assert attempts(run) == [*seen, 99]
        raw = [row for part in (run / "evaluations").glob("part-*.parquet") for row in pq.read_table(part).to_pylist()]
        assert sorted(row["attempt"] for row in raw) == [*seen, 99]
    assert step > 20


def test_a_real_sigkill_keeps_every_acknowledged_row(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from pkb.store.writer import RunStore
        from tests.store.test_store import attempts, evaluation
        store = RunStore(Path(sys.argv[1]))
        start = max(attempts(Path(sys.argv[1])), default=-1) + 1
        for i in range(start, 10**9):
            store.append("evaluations", [evaluation(i)])
            print(i, flush=True)
    """)
    last = -1
    for lines in (30, 400, 700):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(lines):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        printed = [int(x) for x in process.communicate()[0].split()]
        last = max([last, *printed])
        seen = attempts(tmp_path)
        assert seen == list(range(len(seen))) and len(seen) in (last + 1, last + 2)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path):
    program = "import sys; from pathlib import Path; from pkb.store.writer import RunStore; s = RunStore(Path(sys.argv[1]))\n"
    command = [sys.executable, "-c", program + "print('ready', flush=True); sys.stdin.read()", str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    with pytest.raises(UserError, match=f"process {process.pid} on .*pkb status"):
        RunStore(tmp_path)
    process.kill()
    process.communicate()
    RunStore(tmp_path).close()


def test_a_look_at_who_is_writing_keeps_no_writer_out(tmp_path):
    import fcntl
    import threading

    RunStore(tmp_path).close()
    with open(tmp_path / ".lock") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        RunStore(tmp_path).close()


def test_a_full_disk_keeps_what_was_acknowledged_and_lets_the_call_be_repeated(tmp_path, monkeypatch):
    real, room = os.write, 3000

    def bounded(descriptor, data):
        nonlocal room
        if room <= 0:
            raise OSError(28, "No space left on device")
        written = real(descriptor, bytes(data)[:room])
        room -= written
        return written

    with RunStore(tmp_path) as store:
        monkeypatch.setattr(os, "write", bounded)
        kept = 0
        with pytest.raises(OSError, match="No space"):
            while True:
                store.append("evaluations", [evaluation(kept)])
                kept += 1
        assert kept > 0 and attempts(tmp_path) == list(range(kept))
        monkeypatch.setattr(os, "write", real)
        store.append("evaluations", [evaluation(kept)])
    assert attempts(tmp_path) == list(range(kept + 1))


def test_a_disk_that_is_full_at_the_end_leaves_the_journal_to_the_next_writer(tmp_path, monkeypatch):
    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(i) for i in range(3)])
        patch.setattr(pq, "write_table", no_room)
        store.close()
    assert attempts(tmp_path) == [0, 1, 2] and not list((tmp_path / "evaluations").glob("*.parquet"))
    with RunStore(tmp_path):
        pass
    assert attempts(tmp_path) == [0, 1, 2] and len(list((tmp_path / "evaluations").glob("*.parquet"))) == 1


def test_superseded_rows_disappear_from_the_files_themselves(tmp_path):
    with RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(i) for i in range(1500)])
        gone = [AttemptKey("run", "model", PROBLEM, i) for i in (3, 1200, 7777)]
        assert store.supersede("evaluations", gone) == 2
        assert store.supersede("evaluations", gone) == 0
        store.append("evaluations", [evaluation(3)])
    raw = [row for part in (tmp_path / "evaluations").glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    assert sorted(row["attempt"] for row in raw) == sorted({*range(1500)} - {1200})


def test_a_damaged_part_is_named_and_left_out(tmp_path):
    with RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(i) for i in range(1500)])
    part = tmp_path / "evaluations" / "part-000001.parquet"
    part.write_bytes(part.read_bytes()[:500])
    with pytest.warns(UserWarning, match=r"part-000001\.parquet is damaged"):
        assert attempts(tmp_path) == list(range(1000, 1500))
    with pytest.warns(UserWarning, match="damaged"), RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(i) for i in range(1000)])
        assert attempts(tmp_path) == list(range(1500))


def test_rows_of_a_newer_pkb_are_refused_not_misread(tmp_path, monkeypatch):
    monkeypatch.setattr("pkb.store.writer.SCHEMA_VERSION", 7)
    with RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(0)])
    with pytest.raises(UserError, match=r"schema version 7.*upgrade pkb"):
        reader.scan(tmp_path, "evaluations")


def test_a_row_that_the_schema_does_not_take_is_refused_before_anything_is_written(tmp_path):
    incomplete = {k: v for k, v in evaluation(0).items() if k != "verdict"}
    with RunStore(tmp_path) as store:
        with pytest.raises(ValueError, match="verdict"):
            store.append("evaluations", [evaluation(0), incomplete])
        with pytest.raises(ValueError, match="detail may not be empty"):
            store.append("evaluations", [{**evaluation(0), "detail": None}])
    assert attempts(tmp_path) == []


@pytest.mark.slow
def test_the_keys_of_a_million_rows_are_read_in_seconds(tmp_path):
    folder = tmp_path / "evaluations"
    with RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(i) for i in range(1000)])
    for number in range(2, 1001):
        os.link(folder / "part-000001.parquet", folder / layout.Slot(number).part)
    started = time.monotonic()
    assert reader.done_keys(tmp_path, "evaluations").height == 1_000_000
    assert time.monotonic() - started < 15


def test_what_is_no_run_directory_is_said_so(tmp_path):
    with pytest.raises(UserError, match="no run directory"):
        reader.scan(Path(tmp_path / "nowhere"), "evaluations")


def by_other_tools(run, **more):
    """A part as an analyst's own tool writes one: 64-bit numbers, large strings, few columns, no metadata."""
    import polars as pl

    columns = {"model": ["m", "m"], "problem": [PROBLEM] * 2, "attempt": [0, 1], "verdict": ["correct", "mismatch"]}
    (run / "evaluations").mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame({**columns, "speedup": [2.0, None], **more})
    frame.drop(c for c, values in more.items() if values is None).write_parquet(run / "evaluations" / "part-000002.parquet")


def test_parts_of_other_tools_are_read_beside_our_own(tmp_path):
    with RunStore(tmp_path) as store:
        store.append("evaluations", [evaluation(7)])
    by_other_tools(tmp_path)
    found = reader.scan(tmp_path, "evaluations").collect().sort("attempt")
    assert found.select("attempt", "verdict", "speedup", "shared_device", "policy", "measured").rows() == [
        (0, "correct", 2.0, False, "", None),
        (1, "mismatch", None, False, "", None),
        (7, "correct", None, False, "", None),
    ]
    assert found.to_arrow().schema.names == EVALUATIONS.names


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"verdict": None}, "has no column verdict"),
        ({"attempt": ["a", "b"]}, "column attempt is large_string, expected int32"),
        ({"schema_version": [1, 2]}, "schema version 2, this pkb reads 1; upgrade pkb"),
        ({"schema_version": [0, 0]}, "schema version 0, this pkb reads 1; read it with the pkb that wrote it"),
    ],
)
def test_parts_that_cannot_be_taken_for_ours_are_refused_by_name(tmp_path, more, said):
    by_other_tools(tmp_path, **more)
    with pytest.raises(UserError, match=rf"part-000002\.parquet.* {said}|part-000002\.parquet: {said}"):
        reader.scan(tmp_path, "evaluations")
