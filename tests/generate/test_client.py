"""Outcomes of calls, against a real HTTP server."""

import dataclasses
import json

import pytest

from pkb.verdict import GenerationStatus
from tests.generate.conftest import KEY, ask, faster, model_at
from tests.generate.server import CODE, USAGE, Reply, Server, answer, completion, error, json_reply, stream

REASONED = {**USAGE, "completion_tokens": 4096, "total_tokens": 4196}
NOTHING = {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}

#: name, reply not streamed, reply streamed, status.
OUTCOMES = [
    ("ok", answer(), stream(), "ok"),
    ("truncated", answer("```python\ndef sol", "length"), stream(["```python\ndef ", "sol"], "length"), "truncated"),
    ("reasoning ate the budget", answer("", "length", REASONED), stream([], "length", REASONED), "empty"),
    ("null content, tokens counted", answer(None), stream([]), "empty"),
    ("blank", answer(" \n"), stream([" \n"]), "empty"),
    ("refusal", answer(None, refusal="I will not."), stream(["I will ", "not."], key="refusal"), "refused"),
    ("content filter at the end", answer("par", "content_filter"), stream(["par"], "content_filter"), "filtered"),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize(("name", "document", "events", "status"), OUTCOMES, ids=[o[0].replace(" ", "-") for o in OUTCOMES])
def test_outcome(name, document, events, status, streamed):
    with Server.replying(events if streamed else document) as server:
        (found,) = ask(model_at(server, stream=streamed))
    assert found.status == status, found.error
    assert found.tries == len(server.requests) == 1
    assert (found.source is not None) == (status == "ok")
    assert found.request_id == "req-1"
    assert found.cost_usd == pytest.approx((80 * 1.0 + 20 * 0.5 + found.usage["completion_tokens"] * 10.0) / 1e6)
    assert not found.usage["estimated"]


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
def test_what_is_kept_of_an_answer(streamed):
    thought = stream(["I ", "see."], None, None, done=False, key="reasoning_content").chunks
    document = answer(CODE, reasoning_content="I see.")
    events = stream()
    both = Reply(200, events.headers, (*thought, *events.chunks[1:]))
    with Server.replying(both if streamed else document) as server:
        (found,) = ask(model_at(server, stream=streamed, temperature=0.5, max_tokens=99, extra={"extra_body": {"seed": 7}}))
    assert (found.answer, found.reasoning, found.finish_reason) == (CODE, "I see.", "stop")
    assert found.source == "def solution(tensor):\n    return tensor\n"
    kinds = {k: found.usage[k] for k in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")}
    assert kinds == {"prompt_tokens": 100, "cached_tokens": 20, "completion_tokens": 40, "reasoning_tokens": 10}
    assert found.usage["raw"] == USAGE and found.usage["prices"] == "conf"
    sent = {k: v for k, v in server.requests[0].body.items() if k != "messages"}
    assert {k: v for k, v in found.sent.items() if k != "model"} == {k: v for k, v in sent.items() if k != "model"}
    assert sent["temperature"] == 0.5 and sent["seed"] == 7 and 99 in sent.values()
    assert found.prompt == "Write a kernel." and 0 < found.seconds < 20


def test_dropped_and_renamed_parameters_show_in_what_was_sent():
    with Server.replying(answer()) as server:
        (found,) = ask(model_at(server, name="gpt-5", temperature=0.5, max_tokens=99))
    assert "temperature" not in found.sent and found.sent["max_completion_tokens"] == 99


def test_headers_of_an_entry_go_beside_ours():
    with Server.replying(answer()) as server:
        ask(model_at(server, extra={"extra_headers": {"X-Team": "kernels"}}))
    assert {"x-team", "idempotency-key"} <= server.requests[0].headers.keys()


RETRIED = [
    ("429 with Retry-After", error(429, "slow down", headers={"retry-after": "0.1"}), "rate_limit"),
    ("429 without", error(429, "slow down"), "rate_limit"),
    ("500", error(500), "server"),
    ("502 page", Reply(502, {"content-type": "text/html"}, (b"<html>Bad gateway</html>",)), "server"),
    ("503", error(503), "server"),
    ("529", error(529, "overloaded"), "server"),
    ("408", error(408), "server"),
    ("reset before anything", Reply(200, {"content-type": "application/json"}, (), then="reset", length=1000), "connection"),
    ("reset inside a document", Reply(200, {"content-type": "application/json"}, (b'{"id": "x", ',), then="reset", length=1000), "connection"),
    ("200 with an error of status 503", json_reply({"error": {"message": "upstream", "code": 503}}), "server"),
    ("200 with an error of status 429", json_reply({"error": {"message": "slow down", "code": 429}}), "rate_limit"),
    ("200 with an error and no code", json_reply({"error": {"message": "Internal server error"}}), "server"),
    ("null content, no token counted", answer(None, usage=NOTHING), "malformed"),
    ("null content, no usage", answer(None, usage=None), "malformed"),
    ("malformed JSON", json_reply(b'{"id": "x", "choices": [{"mess'), "malformed"),
    ("page of HTML", Reply(200, {"content-type": "text/html"}, (b"<html>Login</html>",)), "malformed"),
    ("no choices", json_reply({**completion(), "choices": []}), "malformed"),
    ("finish reason error", answer("half", "error"), "server"),
]  # fmt: skip
RETRIED_STREAMS = [
    ("429", error(429, "slow down", headers={"retry-after": "0.1"}), "rate_limit"),
    ("503", error(503), "server"),
    ("reset mid-stream", stream(["def "], None, None, done=False, then="reset"), "connection"),
    ("ends early", stream(["def "], None, None, done=False), "connection"),
    ("error inside the stream", stream(["def "], None, None, ({"error": {"message": "overloaded", "code": 503}},), done=False), "server"),
    ("rate limit inside the stream", stream([], None, None, ({"error": {"message": "slow down", "code": 429}},), done=False), "rate_limit"),
    ("finish reason error", stream(["half"], "error"), "server"),
    ("page of HTML", Reply(200, {"content-type": "text/html"}, (b"<html>Login</html>",)), "malformed"),
    ("nothing", Reply(200, {"content-type": "text/event-stream"}, ()), "malformed"),
    ("null content, no usage", stream([], usage=None), "malformed"),
]  # fmt: skip
CASES = [(*case, False) for case in RETRIED] + [(*case, True) for case in RETRIED_STREAMS]


@pytest.mark.parametrize(
    ("name", "reply", "kind", "streamed"),
    CASES,
    ids=[f"{'stream' if c[3] else 'document'}-{c[0].replace(' ', '-')}" for c in CASES],
)
def test_failure_is_asked_again_by_us_and_once(name, reply, kind, streamed):
    with Server.replying(reply, stream() if streamed else answer()) as server:
        (found,) = ask(model_at(server, stream=streamed))
    assert found.status is GenerationStatus.OK, found.error
    assert found.tries == len(server.requests) == 2
    assert [f["kind"] for f in found.usage["failed_tries"]] == [kind]


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
def test_an_outage_that_lasts_is_a_provider_error_with_all_tries_counted(streamed):
    with Server.replying(error(503, "down for maintenance")) as server:
        (found,) = ask(model_at(server, stream=streamed))
    assert found.status is GenerationStatus.PROVIDER_ERROR
    assert found.tries == len(server.requests) == 4
    assert "503" in found.error and "down for maintenance" in found.error
    assert found.cost_usd is None and found.source is None


#: Paid answers in a form that no client library takes.
ODD = [
    ("content in parts", completion([{"type": "text", "text": CODE}]), 40),
    ("counts with fractions", completion(usage={**USAGE, "prompt_tokens": 100.5}), 40),
    ("counts in words", completion(usage={"prompt_tokens": "many", "completion_tokens": {}}), None),
    ("counts that are no numbers", completion(usage={"prompt_tokens": float("nan"), "completion_tokens": float("inf")}), None),
    ("counts below zero", completion(usage={"prompt_tokens": -5, "completion_tokens": -5, "total_tokens": -10}), None),
    ("counts of nothing", completion(usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}), None),
    ("details in words", completion(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": "some"}}), 40),
    ("tool calls that are none", completion(CODE, tool_calls="x"), 40),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "document-for-a-stream"])
@pytest.mark.parametrize(("name", "body", "tokens"), ODD, ids=[o[0].replace(" ", "-") for o in ODD])
def test_an_answer_in_an_odd_form_is_taken_and_not_bought_again(name, body, tokens, streamed):
    with Server.replying(json_reply(body)) as server:
        (found,) = ask(model_at(server, stream=streamed))
    assert (found.status, found.answer, len(server.requests)) == ("ok", CODE, 1)
    if tokens is None:
        assert found.usage["estimated"] and found.cost_usd is None and found.usage["completion_tokens"] > 5
    else:
        assert found.usage["completion_tokens"] == tokens and found.cost_usd > 0
    assert json.loads(json.dumps(found.usage, allow_nan=False))


NO_ANSWER = [
    b"[" * 50_000,
    b'{"choices": null}',
    b'{"choices": [null]}',
    b'{"error": {"code": "\\u00b2", "message": "two"}}',
    b'{"error": 5}',
    b"null",
    b"\xff\xfe",
]


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("body", NO_ANSWER, ids=range(len(NO_ANSWER)))
def test_what_is_no_answer_never_raises(body, streamed):
    with Server.replying(json_reply(body)) as server:
        (found,) = ask(model_at(server, stream=streamed))
    assert found.status is GenerationStatus.PROVIDER_ERROR and found.tries == len(server.requests) == 4


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "-5", "soon", ""])
def test_a_wait_that_is_no_time_is_not_believed(value):
    with Server.replying(error(429, headers={"retry-after": value}), answer()) as server:
        (found,) = ask(model_at(server))
    assert found.status is GenerationStatus.OK and found.tries == 2
    assert json.dumps(found.usage, allow_nan=False)


def test_rate_limits_have_a_bound_of_their_own():
    with Server.replying(*[error(429)] * 5, answer()) as server:
        (found,) = ask(model_at(server))
    assert found.status is GenerationStatus.OK and found.tries == len(server.requests) == 6
    with Server.replying(error(429)) as server:
        (found,) = ask(model_at(server))
    assert found.status is GenerationStatus.PROVIDER_ERROR and len(server.requests) == 6


def test_retry_after_is_honoured_with_jitter():
    with Server(lambda r: error(429, headers={"retry-after": "0.5"}) if r.number < 8 else answer()) as server:
        found = ask(*[(model_at(server), i) for i in range(8)])
    assert all(f.status is GenerationStatus.OK for f in found)
    last_refused = server.requests[7].at
    again = sorted(r.at for r in server.requests[8:])
    assert again[0] - last_refused >= 0.45
    assert again[-1] - again[0] > 0.02  # not all in one instant


def test_a_wait_of_a_day_is_not_waited_for_whatever_the_status():
    with Server.replying(error(503, headers={"retry-after": "86400"})) as server:
        (found,) = ask(model_at(server))
    assert found.status is GenerationStatus.PROVIDER_ERROR and len(server.requests) == 1


FINAL = [
    ("400", error(400, "Unsupported value: 'temperature'"), "provider_error", "request"),
    ("context window", error(400, "maximum context length is 8192 tokens", "context_length_exceeded"), "provider_error", "context"),
    ("413", error(413, "Payload too large"), "provider_error", "context"),
    ("content filter on the prompt", error(400, "The response was filtered", "content_filter"), "filtered", "filtered"),
    ("moderation", error(403, "Your input was flagged by moderation"), "filtered", "filtered"),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize(("name", "reply", "status", "kind"), FINAL, ids=[c[0].replace(" ", "-") for c in FINAL])
def test_failure_that_is_not_asked_again(name, reply, status, kind, streamed):
    with Server.replying(reply, stream() if streamed else answer()) as server:
        found, other = ask(*[(model_at(server, stream=streamed, max_parallel=1), i) for i in range(2)])
    assert (found.status, found.tries) == (status, 1)
    assert found.error.startswith(kind)
    assert other.status is GenerationStatus.OK  # one refused question says nothing about the next


STOPPING = [
    ("401", error(401, f"Incorrect API key provided: {KEY}", "invalid_api_key")),
    ("402", error(402, "Payment required")),
    ("403", error(403, "Country not supported")),
    ("404", error(404, "The model `m` does not exist", "model_not_found")),
    ("empty account", error(429, "You exceeded your current quota, please check your plan", "insufficient_quota")),
    ("bad key as 400", error(400, "API key not valid. Please pass a valid API key.", 400)),
    ("a wait of a day", error(429, "daily limit", headers={"retry-after": "86400"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reply"), STOPPING, ids=[c[0].replace(" ", "-") for c in STOPPING])
def test_a_model_that_cannot_answer_is_stopped_at_once_and_the_others_go_on(name, reply):
    with Server.replying(reply) as bad, Server.replying(answer()) as good:
        model, other = model_at(bad, "bad"), model_at(good, "good")
        found = ask(*[(model, i) for i in range(20)], *[(other, i) for i in range(5)])
    assert len(bad.requests) == 1
    assert all(f.status is GenerationStatus.PROVIDER_ERROR for f in found[:20])
    assert sum(f.tries for f in found[:20]) == 1
    assert all("not asked" in f.error for f in found[1:20])
    assert all(f.status is GenerationStatus.OK for f in found[20:])


def test_the_first_call_holds_the_others_back_for_a_moment_only():
    with Server(lambda r: json_reply(completion(), before=3.0 if r.number == 0 else 0.0)) as server:
        found = ask(*[(model_at(server), i) for i in range(6)])
        first, *others = (request.at for request in server.requests)
    assert all(f.status is GenerationStatus.OK for f in found)
    assert 0.5 < min(others) - first < 3.0


def test_a_provider_that_rejects_every_request_is_not_asked_261_times():
    with Server.replying(error(400, "Unsupported value")) as server:
        found = ask(*[(model_at(server), i) for i in range(30)], config=faster(outage_failures=5))
    assert len(server.requests) == 5
    assert "rejects every request" in found[-1].error


def test_our_own_deadline_ends_a_call_that_sends_a_byte_now_and_then():
    slow = Reply(200, {"content-type": "application/json"}, tuple(b" " for _ in range(200)), pause=0.1)
    with Server.replying(slow) as server:
        (found,) = ask(model_at(server, timeout_seconds=0.7))
        assert found.status is GenerationStatus.PROVIDER_ERROR and found.error.startswith("timeout")
        assert found.tries == len(server.requests) == 2  # max_timeouts=1: asked once more
        assert all(f["seconds"] < 2 for f in found.usage["failed_tries"])


def test_a_stalled_stream_is_left_after_the_idle_time():
    with Server.replying(stream(["def "], None, None, done=False, then="stall"), stream()) as server:
        (found,) = ask(model_at(server, stream=True, idle_seconds=0.5))
    assert found.status is GenerationStatus.OK and found.tries == 2
    assert found.usage["failed_tries"][0]["kind"] == "timeout"
    assert server.requests[0].left_early


def test_a_slow_stream_that_keeps_talking_is_not_stalled():
    with Server.replying(stream(["def "] + ["x"] * 10, pause=0.1)) as server:
        (found,) = ask(model_at(server, stream=True, idle_seconds=0.5))
    assert found.status is GenerationStatus.OK and found.tries == 1


def test_a_stream_of_equal_pieces_is_an_answer():
    with Server.replying(stream(["0, "] * 500)) as server:
        (found,) = ask(model_at(server, stream=True))
    assert found.answer == "0, " * 500 and found.tries == 1


def test_nobody_listens():
    with Server.replying(answer()) as server:
        model = model_at(server)
    (found,) = ask(model)
    assert found.status is GenerationStatus.PROVIDER_ERROR
    assert found.error.startswith("connection: ConnectError") and found.tries == 4


def moved(status, to):
    return Reply(status, {"location": to, "content-type": "text/plain"})


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirection_within_the_server_is_followed(status, provider, tmp_path):
    with Server.replying(moved(status, "/v1/elsewhere"), answer()) as server:
        model = dataclasses.replace(model_at(server), model=f"{provider}/m")
        (found,) = ask(model, spool=tmp_path)
    assert (found.status, found.answer, found.tries, len(server.requests)) == ("ok", CODE, 1, 2)
    assert server.requests[1].body == server.requests[0].body


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize(("status", "to"), [(301, "/v1/a"), (302, "/v1/a"), (303, "/v1/a"), (307, "other"), (302, "")])
def test_no_other_redirection_is_followed_and_the_model_is_stopped_with_advice(status, to, provider, tmp_path):
    """To another server, the key could go along; and a question that is asked with GET is none."""
    with Server.replying(answer()) as other:
        where = f"{other.url}/x" if to == "other" else to
        with Server.replying(moved(status, where)) as server:
            model = dataclasses.replace(model_at(server), model=f"{provider}/m")
            found = ask((model, 0), (model, 1), spool=tmp_path)
    assert (len(server.requests), len(other.requests)) == (1, 0)
    assert all(f.status is GenerationStatus.PROVIDER_ERROR for f in found)
    assert "correct api_base" in found[0].error and (where or "nowhere") in found[0].error


def test_redirections_in_a_circle_end():
    with Server.replying(moved(307, "/v1/chat/completions")) as server:
        (found,) = ask(model_at(server))
    assert found.status is GenerationStatus.PROVIDER_ERROR and len(server.requests) < 30


def test_missing_usage_is_estimated_and_its_cost_unknown():
    for streamed, reply in ((False, answer(usage=None)), (True, stream(usage=None))):
        with Server.replying(reply) as server:
            (found,) = ask(model_at(server, stream=streamed))
        assert found.usage["estimated"] and found.usage["completion_tokens"] > 5
        assert found.cost_usd is None and "raw" not in found.usage


def test_tokens_billed_for_a_failed_try_are_accounted_for():
    with Server.replying(answer("half", "error"), answer()) as server:
        (found,) = ask(model_at(server))
    once = (80 * 1.0 + 20 * 0.5 + 40 * 10.0) / 1e6
    assert found.cost_usd == pytest.approx(2 * once)
    assert found.usage["wasted"][0]["completion_tokens"] == 40


@pytest.mark.parametrize(
    "reply",
    [
        error(401, f"bad key {KEY}"),
        error(500, f"internal {KEY}"),
        answer(f"```python\nK='{KEY}'\ndef solution(tensor): pass\n```"),
    ],
)
def test_no_key_in_anything_that_is_kept(reply, tmp_path, caplog, capfd):
    with Server.replying(reply) as server:
        (found,) = ask(model_at(server), spool=tmp_path)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    kept = json.dumps([str(found), caplog.text, *capfd.readouterr(), *(p.read_text() for p in tmp_path.iterdir())])
    assert KEY not in kept


def test_no_control_sequence_of_a_provider_reaches_a_terminal():
    with Server.replying(error(401, "bad \x1b[2J\x07 \u202ekey \ud800 \xe9")) as server:
        (found,) = ask(model_at(server))
    assert found.error == "access (HTTP 401): bad \ufffd[2J\ufffd \ufffdkey \ufffd \xe9"
    assert found.usage["failed_tries"][0]["message"].isprintable()


def test_answers_under_way_are_kept_when_the_key_is_revoked_meanwhile():
    def script(request):
        return error(401, "revoked", "invalid_api_key") if request.number == 4 else json_reply(completion(), before=1.5)

    with Server(script) as server:
        found = ask(*[(model_at(server, max_parallel=5), i) for i in range(12)])
    assert sorted(f.status for f in found) == ["ok"] * 4 + ["provider_error"] * 8
    assert len(server.requests) == 5 and all(f.cost_usd for f in found if f.status == "ok")


def test_a_conversation_is_sent_whole():
    import asyncio

    from pkb.generate.client import Client
    from tests.generate.conftest import FAST, key_of

    messages = [{"role": r, "content": c} for r, c in [("user", "a"), ("assistant", "b"), ("user", "c")]]

    async def main(model):
        client = Client(FAST, [model])
        try:
            return await client.generate(model, key_of(model), messages)
        finally:
            await client.close()

    with Server.replying(answer()) as server:
        found = asyncio.run(main(model_at(server)))
    assert server.requests[0].body["messages"] == messages
    assert json.loads(found.prompt) == messages
