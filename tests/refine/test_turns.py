"""Attempts of several turns through the real driver: asked as long as they go on, nothing twice, results confirmed apart."""

import asyncio
import dataclasses
import json

import pytest

from pkb.config import AgentConfig, Config
from pkb.records import Generation
from pkb.refine.attempt import Refinement
from pkb.refine.conversation import tokens
from pkb.store import reader
from pkb.sweep.backend import NodeLost
from pkb.verdict import GenerationStatus, Verdict
from tests.sweep import stubs

FIRST = stubs.PROBLEMS[0]


class Model:
    """Answers every turn from a script: the text of its candidate, None for an answer without code. Remembers what it was asked."""

    def __init__(self, *texts):
        self.texts, self.asked = texts, []

    async def generate(self, model, key, messages):
        self.asked.append((key, messages))
        text = self.texts[min(key.turn, len(self.texts) - 1)]
        code = None if text is None else stubs.source(key.problem, text)
        usage = {"prompt_tokens": 100, "completion_tokens": 50}
        return Generation(
            key,
            GenerationStatus.OK,
            "p",
            "h",
            answer=code or "I think...",
            source=code,
            usage=usage,
            cost_usd=0.25,
            seconds=2.0,
        )

    def unavailable(self, name):
        return None

    def forget(self, generation):
        return None


class Backend(stubs.Backend):
    """Judges by the candidate's first line: a verdict and a speedup, e.g. ``# correct 1.5``; ``final``: what a final judgement says."""

    def __init__(self, final=None):
        super().__init__(None, names=("node",))
        self.final, self.jobs = final or {}, []

    def add(self, name):
        super().add(name)
        self.all[-1].evaluate = self.evaluate

    async def evaluate(self, job, build):
        self.jobs.append(job)
        text = job.source.split("\n")[0].removeprefix("# ")
        if job.purpose == "final":
            text = self.final.get(text, text)
        verdict, _, speed = text.partition(" ")
        found = stubs.evaluation(job, Verdict(verdict))
        low = float(speed) if speed else None
        return dataclasses.replace(found, speedup=low, speedup_low=low, speedup_high=low, seconds_by_stage={"total": 3.0})


def settings(**agent):
    return Config(models=["m1"], problems=["1"], attempts=1, agent=AgentConfig(**{"max_turns": 4, **agent}))


def sweep(run, config, model, backend, **options):
    """One session; the run has the three problems of the stubs, of which this asks the first only."""
    return stubs.sweep(run, config, model, backend, conversation=Refinement(config), problems=(FIRST,), **options)


def rows(run, table="evaluations"):
    frame = reader.scan(run, table).collect().sort("turn")
    found = frame.to_dicts()
    assert len({(r["problem"], r["attempt"], r["turn"]) for r in found}) == len(found), "a row twice"
    for row in found:
        for name in {"extra", "usage"} & row.keys():
            row[name] = json.loads(row[name])
    return found


def test_every_turn_is_a_row_and_the_last_says_why_it_was_the_last(tmp_path):
    model, backend = Model("mismatch", "runtime_error", "correct 1.2", "correct 1.1"), Backend()
    progress = sweep(tmp_path / "r", settings(), model, backend)
    found = rows(tmp_path / "r")
    assert [r["verdict"] for r in found] == ["mismatch", "runtime_error", "correct", "correct"]
    assert [r["turn"] for r in rows(tmp_path / "r", "generations")] == [0, 1, 2, 3]
    assert [r["extra"].get("ended", {}).get("rule") for r in found] == [None, None, None, "turns"]
    assert (progress.done, progress.failed) == (1, 0), "an attempt counts once, however many turns it took"


def test_each_question_holds_the_answers_and_what_was_said_about_them(tmp_path):
    model = Model("mismatch", "correct 1.2")
    sweep(tmp_path / "r", settings(max_turns=2), model, Backend())
    (_, first), (_, second) = model.asked
    assert [m["role"] for m in first] == ["user"]
    assert [m["role"] for m in second] == ["user", "assistant", "user"]
    assert second[0] == first[0] and "# mismatch" in second[1]["content"] and "The results are wrong" in second[2]["content"]


def test_a_question_is_no_longer_than_its_model_can_take(tmp_path):
    def longest(limits):
        model, config = Model("mismatch 1", "mismatch 2", "mismatch 3", "mismatch 4"), settings()
        conversation = Refinement(config, limits)
        run = tmp_path / f"r{len(limits)}"
        stubs.sweep(run, config, model, Backend(), conversation=conversation, problems=(FIRST,))
        return [len(messages) for _, messages in model.asked], sum(tokens(m["content"]) for m in model.asked[0][1])

    lengths, task = longest({"other": 1})
    assert lengths == [1, 3, 5, 7]
    assert longest({"m1": task + 150, "other": 1})[0] == [1, 3, 3, 3]


@pytest.mark.parametrize(
    ("agent", "texts", "turns", "rule"),
    [
        ({"target_speedup": 1.5}, ("correct 1.2", "correct 1.6", "correct 2"), 2, "target"),
        ({"max_tokens": 400}, ("mismatch", "mismatch 2", "mismatch 3"), 3, "tokens"),
        ({"max_cost_usd": 0.5}, ("mismatch", "mismatch 2", "mismatch 3"), 2, "cost"),
        ({"max_seconds": 9.0}, ("mismatch", "mismatch 2", "mismatch 3"), 2, "seconds"),
        ({"patience": 2}, ("mismatch", "correct 1.2", "correct 1.1", "mismatch", "correct 9"), 4, "patience"),
        ({"max_turns": 1 + 1}, ("mismatch", "mismatch 2", "mismatch 3"), 2, "turns"),
    ],
)
def test_an_attempt_ends_for_a_reason_that_is_recorded(tmp_path, agent, texts, turns, rule):
    sweep(tmp_path / "r", settings(**{"max_turns": 9, **agent}), Model(*texts), Backend())
    found = rows(tmp_path / "r")
    assert len(found) == turns and found[-1]["extra"]["ended"]["rule"] == rule


def test_the_result_is_judged_again_on_other_inputs_and_that_counts(tmp_path):
    backend = Backend(final={"correct 1.5": "correct 1.3"})
    sweep(tmp_path / "r", settings(max_turns=2), Model("correct 1.5", "correct 1.1"), backend)
    assert [j.purpose for j in backend.jobs] == ["feedback", "feedback", "final"]
    first = rows(tmp_path / "r")[0]
    assert first["speedup"] == 1.3 and first["extra"]["final"] and first["extra"]["feedback"]["speedup"] == 1.5


def test_a_result_that_does_not_hold_gives_way_to_the_next_best(tmp_path):
    backend = Backend(final={"correct 1.5": "nondeterministic", "correct 1.4": "correct 1.05"})
    sweep(tmp_path / "r", settings(max_turns=3), Model("correct 1.5", "correct 1.4", "correct 1.1"), backend)
    assert [j.source.split("\n")[0] for j in backend.jobs if j.purpose == "final"] == [
        "# correct 1.5",
        "# correct 1.4",
        "# correct 1.1",
    ]
    found = rows(tmp_path / "r")
    assert [(r["verdict"], bool(r["extra"].get("final"))) for r in found] == [
        ("nondeterministic", True),
        ("correct", True),
        ("correct", True),
    ], "the best of what is recorded is always one that was confirmed"


def test_an_answer_that_was_given_before_is_not_judged_again_and_the_model_is_told(tmp_path):
    model, backend = Model("mismatch", "mismatch", "correct 1.2"), Backend()
    sweep(tmp_path / "r", settings(max_turns=3), model, backend)
    assert [j.purpose for j in backend.jobs] == ["feedback", "feedback", "final"]
    assert rows(tmp_path / "r")[1]["extra"]["repeats"] == 0
    assert "same as that of turn 0" in model.asked[2][1][-1]["content"]


def test_code_that_was_in_an_answer_cut_off_is_judged_when_it_comes_whole(tmp_path):
    model = Model("correct 1.2", "correct 1.2")
    generate = model.generate

    async def cut_off_at_first(name, key, messages):
        found = await generate(name, key, messages)
        return dataclasses.replace(found, status=GenerationStatus.TRUNCATED) if key.turn == 0 else found

    model.generate = cut_off_at_first
    sweep(tmp_path / "r", settings(max_turns=2), model, Backend())
    assert [r["verdict"] for r in rows(tmp_path / "r")] == ["no_code", "correct"]


def test_an_answer_without_code_counts_as_a_turn_and_is_named(tmp_path):
    model = Model("mismatch", None, "correct 1.2")
    sweep(tmp_path / "r", settings(max_turns=3), model, Backend())
    assert [r["verdict"] for r in rows(tmp_path / "r")] == ["mismatch", "no_code", "correct"]
    assert "holds no candidate" in model.asked[2][1][-1]["content"]


def test_a_session_that_stops_between_turns_goes_on_where_it_was(tmp_path):
    """Answers that were paid for are not asked for again; the conversation continues with the same words."""
    run, config = tmp_path / "r", settings()
    texts = ("mismatch", "mismatch 2", "runtime_error", "correct 1.2")
    whole = Model(*texts)
    sweep(tmp_path / "whole", config, whole, Backend())
    first = Model(*texts)
    backend = Backend()

    async def until_two_turns(driver):
        while len(backend.jobs) < 2:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)

    generate = first.generate

    async def stalls(model, key, messages):
        if key.turn == 2:
            await asyncio.sleep(3600)
        return await generate(model, key, messages)

    first.generate = stalls
    sweep(run, config, first, backend, stop=until_two_turns)
    assert [r["verdict"] for r in rows(run)] == ["mismatch", "mismatch"]
    second = Model(*texts)
    progress = sweep(run, config, second, Backend())
    assert [k.turn for k, _ in second.asked] == [2, 3] and progress.done == 1
    assert [m for _, m in second.asked] == [m for _, m in whole.asked[2:]]
    assert [r["verdict"] for r in rows(run)] == [r["verdict"] for r in rows(tmp_path / "whole")]
    third = Model(*texts)
    sweep(run, config, third, Backend())
    assert third.asked == []


def test_a_result_whose_confirmation_was_cut_off_is_confirmed_by_the_next_session(tmp_path):
    run, config = tmp_path / "r", settings(max_turns=1 + 1)
    backend = Backend(final={"correct 1.2": "harness_error"})
    sweep(run, config, Model("mismatch", "correct 1.2"), backend)
    assert not rows(run)[1]["extra"].get("final")
    again = Backend()
    sweep(run, config, model := Model("mismatch", "correct 1.2"), again)
    assert [j.purpose for j in again.jobs] == ["final"] and model.asked == []
    assert rows(run)[1]["extra"]["final"]


@pytest.mark.parametrize("agent", [{"target_speedup": 1.5}, {"patience": 1}])
def test_a_final_judgement_opens_no_attempt_again(tmp_path, agent):
    """With what it found the target would not be reached, and the second turn would have been a gain."""
    run, config = tmp_path / "r", settings(max_turns=9, **agent)
    texts = ("correct 1.6", "correct 1.55", "correct 9")
    sweep(run, config, first := Model(*texts), Backend(final={"correct 1.6": "correct 1.2", "correct 1.55": "correct 1.1"}))
    sweep(run, config, again := Model(*texts), Backend())
    assert len(first.asked) == len(rows(run)) < 3 and again.asked == []


def test_a_result_is_confirmed_also_when_its_model_fails_and_the_next_session_goes_on_with_the_same_words(tmp_path):
    run, config = tmp_path / "r", settings(max_turns=3)
    texts = ("correct 1.5", "mismatch", "correct 1.7")
    sweep(tmp_path / "whole", config, whole := Model(*texts), Backend())
    failing = Model(*texts)
    generate = failing.generate

    async def fails(model, key, messages):
        found = await generate(model, key, messages)
        return dataclasses.replace(found, status=GenerationStatus.PROVIDER_ERROR, source=None) if key.turn == 2 else found

    failing.generate = fails
    sweep(run, config, failing, Backend(final={"correct 1.5": "correct 1.3"}))
    first = rows(run)[0]
    assert first["extra"]["final"] and first["speedup"] == 1.3 and first["extra"]["feedback"]["speedup"] == 1.5
    sweep(run, config, again := Model(*texts), backend := Backend())
    assert [m for _, m in again.asked] == [whole.asked[2][1]]
    assert [j.purpose for j in backend.jobs] == ["feedback", "final"] and rows(run)[2]["extra"]["final"]


def test_a_node_that_dies_in_a_turn_costs_no_answer(tmp_path):
    backend, deaths = Backend(), iter([True])
    real = backend.evaluate

    async def dying(job, build):
        if next(deaths, False):
            backend.all[0].lost.set_result("gone")
            raise NodeLost("gone")
        return await real(job, build)

    backend.evaluate = dying
    model = Model("mismatch", "correct 1.2")
    sweep(tmp_path / "r", settings(max_turns=2), model, backend)
    assert [k.turn for k, _ in model.asked] == [0, 1] and rows(tmp_path / "r")[1]["verdict"] == "correct"


def test_turns_of_different_attempts_interleave(tmp_path):
    """While one attempt's model thinks, the node judges another's; the node never waits for a particular attempt."""
    config = Config(models=["m1"], problems=["1"], attempts=2, agent=AgentConfig(max_turns=2))
    backend, model = Backend(), Model("mismatch", "correct 1.2")
    generate = model.generate

    async def slow(name, key, messages):
        if key.attempt == 0:
            while not any(j.label.endswith("/1.1") for j in backend.jobs):
                await asyncio.sleep(0.005)
        return await generate(name, key, messages)

    model.generate = slow
    sweep(tmp_path / "r", config, model, backend)
    assert {r["verdict"] for r in reader.scan(tmp_path / "r", "evaluations").collect().to_dicts() if r["turn"] == 1} == {
        "correct"
    }
