"""The driver's promises, with stub models and nodes: everything once, whatever fails, and nothing more than the bounds allow."""

import asyncio
import json
import os
from dataclasses import replace

import pytest

from pkb.errors import HarnessError
from pkb.store import reader
from pkb.store.writer import RunStore
from pkb.sweep import judges
from pkb.sweep.backend import ClusterLost, NodeLost
from pkb.verdict import GenerationStatus, Verdict
from tests.sweep import stubs

ALL = {(m, p, a) for m in ("m1", "m2") for p in stubs.PROBLEMS for a in range(2)}
CORRECT = dict.fromkeys(ALL, "correct")


def always_correct(job, node):
    return Verdict.CORRECT


def test_every_attempt_gets_one_answer_and_one_verdict(tmp_path):
    generator, backend = stubs.Generator(), stubs.Backend(always_correct)
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), generator, backend)
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    assert sorted((k.model, k.problem, k.attempt) for k in generator.asked) == sorted(ALL)
    assert (progress.done, progress.failed, progress.total) == (12, 0, 12)
    assert not +sum((m.stages for m in progress.models.values()), start=type(progress.models["m1"].stages)())


def test_the_log_that_a_row_names_tells_its_attempt_s_story(tmp_path):
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    row = reader.scan(tmp_path / "run", "evaluations").collect().row(0, named=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / row["log"]).read_text().splitlines()]
    story = [line["event"] for line in lines if line["attempt"] == row["attempt"]]
    assert story == ["generated", "judged"]


def test_answers_without_a_runnable_candidate_never_reach_a_node(tmp_path):
    faults = {
        ("m1", stubs.PROBLEMS[0], 0): [GenerationStatus.TRUNCATED],
        ("m1", stubs.PROBLEMS[0], 1): [GenerationStatus.EMPTY],
        ("m2", stubs.PROBLEMS[0], 0): [GenerationStatus.REFUSED],
    }
    backend = stubs.Backend(always_correct)
    backend.build_faults = ["error: expected ';'"]
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(faults=faults), backend)
    found = stubs.outcomes(tmp_path / "run")
    assert [found[key] for key in faults] == ["no_code"] * 3
    assert list(found.values()).count("compile_error") >= 1
    assert len([label for node in backend.all for label in node.log]) == list(found.values()).count("correct")


def test_a_second_session_asks_and_judges_only_what_is_missing(tmp_path):
    """Stop in the middle; the answers that came are not asked for again, the verdicts not given again."""
    run, first, judged = tmp_path / "run", stubs.Generator(), []

    async def slow(job, node):
        judged.append(job.label)
        if len(judged) > 4:
            await asyncio.sleep(3600)
        return Verdict.CORRECT

    async def until_stuck(driver):
        while len(judged) < 6:
            await asyncio.sleep(0.01)

    stubs.sweep(run, stubs.settings(), first, stubs.Backend(slow), stop=until_stuck)
    before, answered = stubs.outcomes(run), reader.done_keys(run, "generations").height
    assert len(before) == 4
    second, backend = stubs.Generator(), stubs.Backend(always_correct)
    stubs.sweep(run, stubs.settings(), second, backend)
    assert stubs.outcomes(run) == CORRECT
    assert len(second.asked) == 12 - answered and len([x for n in backend.all for x in n.log]) == 8
    third = stubs.Generator()
    stubs.sweep(run, stubs.settings(), third, stubs.Backend(always_correct))
    assert third.asked == [] and stubs.outcomes(run) == CORRECT


def test_answers_that_do_not_count_are_asked_for_again_by_the_next_session(tmp_path):
    failing = {
        ("m1", stubs.PROBLEMS[0], 0): [GenerationStatus.PROVIDER_ERROR],
        ("m2", stubs.PROBLEMS[2], 1): [GenerationStatus.FILTERED],
    }
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(faults=failing), stubs.Backend(always_correct))
    assert (progress.done, progress.failed) == (10, 2)
    assert sorted(reader.done_keys(tmp_path / "run", "generations")["outcome"].unique()) == ["filtered", "ok", "provider_error"]
    again = stubs.Generator()
    stubs.sweep(tmp_path / "run", stubs.settings(), again, stubs.Backend(always_correct))
    assert sorted((k.model, k.problem, k.attempt) for k in again.asked) == sorted(failing)
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    assert reader.done_keys(tmp_path / "run", "generations").height == 12


def test_a_model_that_is_not_asked_any_more_leaves_its_attempts_to_the_next_session(tmp_path):
    generator = stubs.Generator()
    generator.stopped["m1"] = "401: bad key"
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), generator, stubs.Backend(always_correct))
    assert {key[0] for key in stubs.outcomes(tmp_path / "run")} == {"m2"}
    assert progress.models["m1"].unavailable == "401: bad key"
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(tmp_path / "run") == CORRECT


def test_a_node_that_dies_loses_nothing_and_is_used_again_when_it_is_back(tmp_path):
    deaths = iter([True, False, True])

    def judge(job, node):
        return NodeLost("actor died") if next(deaths, False) else Verdict.CORRECT

    backend = stubs.Backend(judge)
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    assert len(backend.all) == 4 and any(node.log for node in backend.all[2:])
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["state"] for e in events if e["event"] == "node"].count("lost") == 2


def test_a_node_that_is_lost_while_idle_is_noticed_and_blames_nobody(tmp_path):
    gate = {}

    async def judge(job, node):
        await gate["open"].wait()
        return Verdict.CORRECT

    backend = stubs.Backend(judge, names=("only",), replace=True)
    generator = stubs.Generator()

    async def play(driver):
        gate["open"], generator.gate = asyncio.Event(), asyncio.Event()
        while not backend.all:
            await asyncio.sleep(0.01)
        backend.all[0].lost.set_result("node removed")
        while len(backend.all) < 2:
            await asyncio.sleep(0.01)
        generator.gate.set()
        gate["open"].set()
        while driver.progress.done < 12:
            await asyncio.sleep(0.01)

    generator.gate = asyncio.Event()
    stubs.sweep(tmp_path / "run", stubs.settings(), generator, backend, stop=play)
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    assert reader.scan(tmp_path / "run", "evaluations").collect()["try"].to_list() == [0] * 12


def test_an_attempt_that_brings_down_two_nodes_is_given_up_with_both_logs_and_the_rest_is_done(tmp_path):
    poison = ("m1", stubs.PROBLEMS[1], 1)
    label = "/".join(map(str, poison)) + ".0"

    async def judge(job, node):
        await asyncio.sleep(0.01)
        return NodeLost(f"{node.name} died", f"last words of {node.name}") if job.label == label else Verdict.CORRECT

    backend = stubs.Backend(judge)
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert stubs.outcomes(tmp_path / "run") == {**CORRECT, poison: "harness_error"}
    assert (progress.done, progress.failed) == (11, 1)
    frame = reader.scan(tmp_path / "run", "evaluations").collect()
    row = frame.row(frame["verdict"].to_list().index("harness_error"), named=True)
    failures = json.loads(row["extra"])["failures"]
    assert {f["node"] for f in failures} == {"node-a", "node-b"} and row["try"] == 2
    assert {f["log"] for f in failures} == {"last words of node-a", "last words of node-b"}
    again = stubs.Backend(judge)
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), again)
    assert all(node.log == [] for node in again.all), "an attempt that brings nodes down is not tried again by itself"


def killed(job):
    return replace(stubs.evaluation(job, Verdict.RUNTIME_ERROR), detail="rank 1 was ended by SIGKILL", extra={"killed": True})


@pytest.mark.parametrize("times", [1, 2], ids=["by somebody", "by itself"])
def test_a_candidate_whose_rank_was_killed_is_judged_once_more(tmp_path, times):
    """Verdicts do not depend on who kills what on a machine; a candidate that kills itself does so again."""
    victim, seen = ("m1", stubs.PROBLEMS[1], 0), []

    def judge(job, node):
        if job.label == "/".join(map(str, victim)) + ".0":
            seen.append(node.name)
            if len(seen) <= times:
                return killed(job)
        return Verdict.CORRECT

    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(judge))
    assert stubs.outcomes(tmp_path / "run") == {**CORRECT, victim: "correct" if times == 1 else "runtime_error"}
    assert len(seen) == 2
    row = (
        reader.scan(tmp_path / "run", "evaluations")
        .filter(model=victim[0], problem=victim[1], attempt=0)
        .collect()
        .to_dicts()[0]
    )
    assert json.loads(row["extra"])["judged_again_after"] == "rank 1 was ended by SIGKILL"
    log = (tmp_path / "run" / row["log"]).read_text().splitlines()
    assert [e["event"] for e in map(json.loads, log) if e["attempt"] == 0] == ["generated", "killed", "judged"]


def test_a_candidate_whose_compiler_was_killed_is_built_once_more(tmp_path):
    backend = stubs.Backend(always_correct)
    backend.build_faults = ["c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated."]
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert stubs.outcomes(tmp_path / "run") == CORRECT


def test_an_attempt_that_is_under_way_whenever_ray_is_lost_is_tried_again_by_the_next_session(tmp_path):
    """Losing the head says nothing about any one attempt, least of all about the last one left."""
    last = ("m2", stubs.PROBLEMS[2], 1)

    def judge(job, node):
        return ClusterLost("Ray is lost") if job.label == "/".join(map(str, last)) + ".0" else Verdict.CORRECT

    run = tmp_path / "run"
    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(judge))
    assert stubs.outcomes(run) == {**CORRECT, last: "harness_error"}
    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(run) == CORRECT


def test_an_innocent_attempt_is_not_blamed_when_nodes_die_all_the_time(tmp_path):
    """Every attempt's first two tries meet a dying node: nobody in particular is guilty, and all get their verdict."""
    tried = {}

    def judge(job, node):
        tried[job.label] = tried.get(job.label, 0) + 1
        return NodeLost("chaos") if tried[job.label] <= 2 else Verdict.CORRECT

    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(judge))
    assert stubs.outcomes(tmp_path / "run") == CORRECT


def test_harness_errors_are_tried_on_another_node_and_end_as_harness_error_not_as_the_model_s_fault(tmp_path):
    broken = ("m2", stubs.PROBLEMS[0], 0)
    label = "/".join(map(str, broken)) + ".0"
    places = []

    async def judge(job, node):
        await asyncio.sleep(0.01)
        if job.label == label:
            places.append(node.name)
            return HarnessError("reference ranks: NCCL fell over")
        return Verdict.CORRECT

    run = tmp_path / "run"
    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(judge))
    assert sorted(places[:2]) == ["node-a", "node-b"]
    assert stubs.outcomes(run) == {**CORRECT, broken: "harness_error"}
    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(run) == CORRECT, "the same command tries again what the machine had failed"


def test_a_node_whose_canary_fails_gets_nothing_until_it_is_well_again(tmp_path, monkeypatch):
    monkeypatch.setattr(judges, "QUARANTINE_SECONDS", 0.05)
    first = []

    async def judge(job, node):
        await asyncio.sleep(0.01)
        if not first:
            first.append(node)
            node.sick = ["canary: mismatch"] * 3
            return HarnessError("something odd")
        return Verdict.CORRECT

    backend = stubs.Backend(judge)
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    states = [(e["state"], e["reason"]) for e in events if e.get("node") == first[0].name]
    assert ("quarantined", "canary: mismatch") in states
    assert any("quarantined" in notice for notice in progress.notices)


def test_a_builder_that_dies_is_no_compile_error(tmp_path):
    backend = stubs.Backend(always_correct)
    backend.build_faults = [HarnessError("the builder died"), HarnessError("the builder died")]
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert stubs.outcomes(tmp_path / "run") == CORRECT


def test_identical_sources_are_built_once_at_a_time_and_stay_separate_attempts(tmp_path):
    backend = stubs.Backend(always_correct)
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), backend)
    assert len(backend.built) < 12 and len(set(backend.built)) == 2  # two of the three problems have the same signature
    assert len(stubs.outcomes(tmp_path / "run")) == 12


def test_without_any_node_the_session_ends_with_a_reason(tmp_path, monkeypatch):
    import dataclasses

    monkeypatch.setattr(judges, "WATCH_SECONDS", 0.02)
    config = stubs.settings()
    limits = dataclasses.replace(config.evaluation.limits, start_seconds=0.1)
    evaluation = dataclasses.replace(config.evaluation, limits=limits)
    cluster = dataclasses.replace(config.cluster, lost_node_seconds=0.1)
    config = dataclasses.replace(config, cluster=cluster, evaluation=evaluation)
    backend = stubs.Backend(lambda job, node: NodeLost("cable pulled"), names=("only",), replace=False)
    with pytest.raises(HarnessError, match=r"no usable node.*only lost: cable pulled.*run the same command again"):
        stubs.sweep(tmp_path / "run", config, stubs.Generator(), backend)
    stubs.sweep(tmp_path / "run", config, stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(tmp_path / "run") == CORRECT


def test_a_slow_evaluation_holds_generation_back(tmp_path):
    """Never more outstanding than in flight + lag, although generation is instant."""
    import dataclasses

    config = dataclasses.replace(stubs.settings(), attempts=40)
    config = dataclasses.replace(
        config,
        generation=dataclasses.replace(config.generation, max_in_flight=3),
        cluster=dataclasses.replace(config.cluster, lag=5),
    )
    generator, ahead = stubs.Generator(), []

    async def judge(job, node):
        ahead.append(len(generator.asked) - len(ahead))
        await asyncio.sleep(0)
        return Verdict.CORRECT

    stubs.sweep(tmp_path / "run", config, generator, stubs.Backend(judge))
    assert max(ahead) <= 3 + 5 and len(stubs.outcomes(tmp_path / "run")) == 240


def test_a_conversation_of_several_turns_keeps_one_row_per_turn(tmp_path):
    def three_turns(key, history):
        return None if len(history) == 3 else [{"role": "user", "content": f"turn {len(history)}"}]

    run = tmp_path / "run"
    stubs.sweep(run, stubs.settings(), stubs.Generator(), stubs.Backend(always_correct), conversation=three_turns)
    turns = reader.done_keys(run, "evaluations")["turn"].to_list()
    assert sorted(turns) == [0] * 12 + [1] * 12 + [2] * 12


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    from pkb.store import writer
    from pkb.sweep import recorder

    monkeypatch.setattr(recorder, "DISK_RETRY_SECONDS", 0.02)
    real, failures = writer.RunStore.append, iter([False, True, True, False, True])

    def append(self, table, rows):
        if next(failures, False):
            raise OSError(28, "No space left on device")
        real(self, table, rows)

    monkeypatch.setattr(writer.RunStore, "append", append)
    progress = stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(tmp_path / "run") == CORRECT
    assert any("full" in notice for notice in progress.notices)
    assert sum("waiting" in notice for notice in progress.notices) == 2  # once for each time, not for each try


def test_a_full_disk_tears_and_loses_no_line_of_the_logs(tmp_path, monkeypatch):
    from pkb.sweep import recorder

    monkeypatch.setattr(recorder, "DISK_RETRY_SECONDS", 0.02)
    real, failures = os.write, iter([False, True, True, False, True])

    def write(descriptor, data):
        if b'"generated"' in bytes(data) and next(failures, False):
            real(descriptor, bytes(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    events = [json.loads(line) for log in (tmp_path / "run" / "logs").rglob("*.jsonl") for line in log.read_text().splitlines()]
    assert sorted(event["event"] for event in events) == ["generated"] * 12 + ["judged"] * 12


def test_at_the_end_of_a_session_nobody_is_told_to_wait_for_a_full_disk(tmp_path, monkeypatch):
    from pkb.sweep import recorder

    def no_room(path, text):
        raise OSError(28, "No space left on device")

    async def play():
        with RunStore(tmp_path) as store:
            written = recorder.Recorder(store, notices.append)
            waiting = asyncio.create_task(written.event("session", state="started"))
            await asyncio.sleep(0)
            with pytest.raises(HarnessError, match="full"):
                await written.drain()
            waiting.cancel()

    notices = []
    monkeypatch.setattr(recorder, "append_whole", no_room)
    asyncio.run(play())
    assert notices == []


def test_a_disk_that_stays_full_ends_the_session_and_the_next_one_completes_it(tmp_path, monkeypatch):
    from pkb.store import writer
    from pkb.sweep import recorder

    monkeypatch.setattr(recorder, "DISK_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(recorder, "DISK_PATIENCE_SECONDS", 0.1)
    real = writer.RunStore.append

    def append(self, table, rows):
        if table == "evaluations":
            raise OSError(28, "No space left on device")
        real(self, table, rows)

    with monkeypatch.context() as patch:
        patch.setattr(writer.RunStore, "append", append)
        with pytest.raises(HarnessError, match=r"full.*same command"):
            stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    stubs.sweep(tmp_path / "run", stubs.settings(), stubs.Generator(), stubs.Backend(always_correct))
    assert stubs.outcomes(tmp_path / "run") == CORRECT
