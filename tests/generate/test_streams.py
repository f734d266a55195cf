"""Streams in unusual forms, with unusual ends, and what they have cost."""

import dataclasses
import gzip
import json

import pytest

from pkb.config import BudgetConfig
from pkb.generate import wire
from tests.generate.conftest import ask, faster, model_at
from tests.generate.server import CODE, Reply, Server, answer, completion, json_reply, stream

PROVIDERS = ["openai", "hosted_vllm"]  # one that litellm reaches through the OpenAI library, one through its own handler
PIECES = [CODE[at : at + 7] for at in range(0, len(CODE), 7)]
ONCE = (80 * 1.0 + 20 * 0.5 + 40 * 10.0) / 1e6
GOOD = stream(PIECES)


def streaming(server, provider="openai", **settings):
    return dataclasses.replace(model_at(server, stream=True, **settings), model=f"{provider}/m")


def rewritten(change, **headers):
    """The good stream with its bytes changed."""
    return Reply(200, {**GOOD.headers, **headers}, (change(b"".join(GOOD.chunks)),))


def over_lines(data):
    events = [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-2]]
    lines = [json.dumps(event, indent=1).replace("\n", "\ndata: ") for event in events]
    return "".join(f"data: {text}\n\n" for text in [*lines, "[DONE]"]).encode()


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "object": "chat.completion.chunk"}


PARTS = [delta(content=[{"type": "text", "text": piece}]) for piece in PIECES]
FORMS = {
    "CRLF": rewritten(lambda data: data.replace(b"\n", b"\r\n")),
    "CR": rewritten(lambda data: data.replace(b"\n", b"\r")),
    "comments and fields": rewritten(
        lambda data: b": hi\n\n" + data.replace(b"\n\n", b"\n\n: ping\n\nevent: message\nid: 7\n")
    ),
    "events over several lines": rewritten(over_lines),
    "no empty lines": rewritten(lambda data: data.replace(b"\n\n", b"\n")),
    "byte order mark": rewritten(lambda data: b"\xef\xbb\xbf" + data),
    "junk": rewritten(lambda data: data.replace(b"\n\n", b"\n\ndata: junk\n\ndata: \xff\n\n", 1)),
    "said to be text": rewritten(bytes, **{"content-type": "text/plain"}),
    "said to be a document": rewritten(bytes, **{"content-type": "application/json"}),
    "gzip": rewritten(gzip.compress, **{"content-encoding": "gzip"}),
    "said to be gzip": rewritten(bytes, **{"content-encoding": "gzip"}),
    "no last word": stream(PIECES, done=False),
    "a document": answer(),
    "content in parts": stream([], extra=tuple(PARTS)),
    "a part of the content in parts": stream(PIECES[:2], extra=tuple(PARTS[2:])),
    "no delta": stream(PIECES, extra=({"choices": [{"index": 0, "delta": None}]},)),
    "counts all along": stream(PIECES, extra=({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 3}},)),
    "counts before": Reply(200, GOOD.headers, (GOOD.chunks[-2], *GOOD.chunks[:-2], GOOD.chunks[-1])),
    "nobody closes": dataclasses.replace(GOOD, then="stall"),
    "nobody closes, no last word": stream(PIECES, done=False, then="stall"),
    "reset after the end": stream(PIECES, done=False, then="reset"),
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_in_any_form_is_whole_and_bought_once(form, provider):
    with Server.replying(FORMS[form]) as server:
        (found,) = ask(streaming(server, provider, idle_seconds=0.5))
    assert (found.status, found.answer, found.tries, len(server.requests)) == ("ok", CODE, 1, 1), found.error
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"]) == (100, 40)
    assert not found.usage["estimated"] and found.cost_usd == pytest.approx(ONCE)


DAMAGE = {
    "cut short": lambda event: event[: len(event) // 2],
    "no UTF-8": lambda event: event.replace(b"def", b"d\xff"),
    "bytes lost": lambda event: event.replace(b'"delta"', b'"delt'),
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_an_answer_with_a_hole_is_asked_for_again_and_on_the_bill(kind, provider):
    events = stream([CODE[:10], CODE[10:20], CODE[20:]]).chunks
    hit = next(i for i, event in enumerate(events) if b"def" in event)
    damaged = DAMAGE[kind](events[hit].rstrip()) + b"\n\n"
    with Server.replying(Reply(200, GOOD.headers, (*events[:hit], damaged, *events[hit + 1 :])), GOOD) as server:
        (found,) = ask(streaming(server, provider))
    assert (found.status, found.answer, found.tries) == ("ok", CODE, 2)
    assert found.usage["failed_tries"][0]["kind"] == "malformed" and found.usage["billed_tokens"] == 2 * 140


def test_damage_after_the_end_of_an_answer_costs_nothing():
    events = stream(PIECES, done=False).chunks
    with Server.replying(Reply(200, GOOD.headers, (*events[:-1], events[-1][:30]))) as server:
        (found,) = ask(streaming(server))
    assert (found.status, found.answer, found.tries, found.usage["estimated"]) == ("ok", CODE, 1, True)


CHOKING = [
    {"choices": 5},
    {"choices": [5]},
    {"choices": [{"index": 0, "delta": 5}]},
    {"choices": [], "usage": {"prompt_tokens": 1.5, "completion_tokens": 2}},
    {"choices": [{"index": 0, "delta": {"content": "", "annotations": 5}}]},
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("event", CHOKING, ids=range(len(CHOKING)))
def test_an_event_that_the_client_library_chokes_on_does_not_cost_the_answer(event, provider):
    """Each of these makes litellm give up the stream, for one of the providers at least."""
    reply = stream(PIECES[:2], extra=(event, *PARTS[2:]), pause=0.02)
    with Server.replying(reply) as server:
        (found,) = ask(streaming(server, provider))
    assert (found.status, found.answer, found.tries, found.usage["billed_tokens"]) == ("ok", CODE, 1, 140)
    assert not server.requests[0].left_early


def test_a_stream_that_the_client_library_has_left_is_not_waited_for_longer_than_any_other():
    reply = stream(PIECES[:2], None, None, extra=(CHOKING[1],), done=False, then="stall")
    with Server.replying(reply, GOOD) as server:
        silent, late = ask(
            streaming(server, name="silent", idle_seconds=0.5),
            streaming(server, name="late", timeout_seconds=0.7),
            config=faster(),
        )
    assert all(f.status == "ok" and f.tries <= 2 for f in (silent, late))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
def test_reasoning_is_kept_whatever_it_is_called(key, streamed, provider):
    reply = stream(PIECES, extra=(delta(**{key: "I see."}),)) if streamed else answer(**{key: "I see."})
    with Server.replying(reply) as server:
        (found,) = ask(dataclasses.replace(streaming(server, provider), stream=streamed))
    assert (found.status, found.answer, found.reasoning) == ("ok", CODE, "I see.")


def test_hidden_reasoning_that_ate_the_budget_is_an_answer_though_nobody_closes():
    thought = (delta(reasoning_content="Hm. "),)
    with Server.replying(stream([], "length", extra=thought, done=False, then="stall")) as server:
        (found,) = ask(streaming(server, idle_seconds=0.5))
    assert (found.status, found.tries, found.reasoning, found.usage["billed_tokens"]) == ("empty", 1, "Hm. ", 140)


BROKEN = {"error": {"code": 502, "message": "upstream died"}}
FAILED = {
    "finish reason error": stream(["half"], "error"),
    "finish reason abort": stream(["half"], "abort"),
    "an error and the count": stream(["half"], None, extra=(BROKEN,)),
    "the count some time later": stream(["half"], "error", pause=0.1),
    "nobody closes": stream(["half"], "error", then="stall"),
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("end", FAILED)
def test_the_count_that_follows_a_failed_end_is_on_the_bill(end, provider):
    with Server.replying(FAILED[end], GOOD) as server:
        (found,) = ask(streaming(server, provider, idle_seconds=2))
    assert (found.status, found.tries, len(server.requests)) == ("ok", 2, 2)
    assert found.usage["billed_tokens"] == 2 * 140 and found.cost_usd == pytest.approx(2 * ONCE)
    assert [w["completion_tokens"] for w in found.usage["wasted"]] == [40] and "estimated_wasted" not in found.usage


TEXT = ["one two three four five six seven eight nine ten " * 10]
CUT = {
    "reset": stream(TEXT, None, None, done=False, then="reset"),
    "stalled": stream(TEXT, None, None, done=False, then="stall"),
    "ended early": stream(TEXT, None, None, done=False),
    "failed without a count": stream(TEXT, "error", None),
    "reset after a first count": stream(
        TEXT, None, None, ({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1}},), done=False, then="reset"
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("end", CUT)
def test_what_a_cut_off_stream_has_probably_cost_is_told_apart_from_what_is_known(end, provider):
    with Server.replying(CUT[end], GOOD) as server:
        (found,) = ask(streaming(server, provider, idle_seconds=0.5))
    assert (found.status, found.tries, found.usage["completion_tokens"]) == ("ok", 2, 40)
    counted = "count" in end and "without" not in end
    known = 101 if counted else 0
    assert found.usage["billed_tokens"] == 140 + known
    estimated = found.usage["failed_tries"][0]["estimated_tokens"]
    assert 90 < estimated["completion_tokens"] < 130 and (estimated["prompt_tokens"] == 0) == counted
    tokens = estimated["prompt_tokens"] + estimated["completion_tokens"]
    cost = (estimated["prompt_tokens"] + 10 * estimated["completion_tokens"]) / 1e6
    assert found.usage["estimated_wasted"] == {"tokens": tokens, "cost_usd": pytest.approx(cost)}


def test_an_estimate_never_exceeds_what_was_allowed():
    with Server.replying(CUT["reset"], GOOD) as server:
        (found,) = ask(streaming(server, max_tokens=50))
    assert found.usage["failed_tries"][0]["estimated_tokens"]["completion_tokens"] == 50


def test_estimates_count_into_the_budget_of_this_session_and_the_next(tmp_path):
    with Server.replying(CUT["reset"], GOOD) as server:
        model = streaming(server)
        budget = BudgetConfig(tokens=50)
        (first,) = ask(model, spool=tmp_path, budget=budget)
        (held,) = ask((model, 1), spool=tmp_path, budget=budget)  # no row of the first was written
        assert len(server.requests) == 1
        (found,) = ask(model, spool=tmp_path)
    assert first.status == held.status == "provider_error" and "is used up" in first.error and "is used up" in held.error
    assert found.status == "ok" and found.usage["estimated_wasted"]["tokens"] > 90


def test_tokens_of_an_answer_whose_count_is_lost_are_estimated_with_the_prompt():
    with Server.replying(stream(PIECES, "stop", None, done=False, then="reset")) as server:
        (found,) = ask(streaming(server))
    assert (found.status, found.answer, found.tries) == ("ok", CODE, 1)
    assert found.usage["estimated"] and found.cost_usd is None
    assert found.usage["prompt_tokens"] > 0 and found.usage["completion_tokens"] > 5


ENDLESS = (b'data: {"choices": [{"delta": {"content": "' + b"x" * 9_000 + b'"}}]}\n\n',) * 100


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"content-type": "text/event-stream"}, ENDLESS),
        json_reply(completion("x" * 900_000)),
        json_reply(gzip.compress(b" " * 10**8), headers={"content-encoding": "gzip"}),
    ],
    ids=["stream", "document", "packed"],
)
def test_an_answer_without_end_is_left(reply, provider, monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 2**19)
    with Server.replying(reply, GOOD) as server:
        (found,) = ask(streaming(server, provider), config=faster(max_retries=0))
    assert found.status == "provider_error" and "the answer was left after" in found.error


@pytest.mark.parametrize("data", [gzip.compress(CODE.encode())[:-9], b"\x1f\x8b\x08" + b"\x07" * 99])
def test_damaged_packing_is_a_failure_of_the_provider(data):
    with Server.replying(json_reply(data, headers={"content-encoding": "gzip"}), answer()) as server:
        (found,) = ask(model_at(server))
    assert (found.status, found.tries) == ("ok", 2)
