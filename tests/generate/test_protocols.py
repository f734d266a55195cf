"""Providers with protocols of their own: what their words mean, whole way through."""

import json

import pytest

from pkb.generate.models import Model, Prices
from tests.generate.conftest import ask
from tests.generate.server import CODE, Reply, Server, json_reply


def anthropic(text=CODE, stop="end_turn", **fields):
    content = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": text}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content if text else content[:1],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 50, "output_tokens": 30},
        **fields,
    }


def gemini(text=CODE, finish="STOP", **fields):
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": finish, "index": 0}
    return {
        "candidates": [candidate],
        "usageMetadata": {"promptTokenCount": 50, "candidatesTokenCount": 20, "thoughtsTokenCount": 10, "totalTokenCount": 80},
        **fields,
    }


def anthropic_events(text=CODE, stop="end_turn"):
    usage = {"input_tokens": 50, "output_tokens": 1}
    events = [
        {"type": "message_start", "message": {**anthropic(None, None), "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
            for t in (text[:9], text[9:])
            if t
        ),
        {"type": "content_block_stop", "index": 0},
    ]
    if stop:
        events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 30}})
        events.append({"type": "message_stop"})
    return events


def sse(events, then="close"):
    data = tuple(f"event: {e.get('type', 'message')}\ndata: {json.dumps(e)}\n\n".encode() for e in events)
    return Reply(200, {"content-type": "text/event-stream", "request-id": "req-a"}, data, then=then)


def asked(provider, *replies, stream=False):
    with Server.replying(*replies) as server:
        model = Model(
            "m",
            {"anthropic": "anthropic/claude-opus-5-5", "gemini": "gemini/gemini-3.8-flash"}[provider],
            api_base=server.url,
            key_env="TEST_PROVIDER_KEY",
            prices=Prices(1.0, 10.0),
            stream=stream,
            timeout_seconds=20.0,
        )
        (found,) = ask(model)
    return found, server


OUTCOMES = [
    ("anthropic", anthropic(), "ok"),
    ("anthropic", anthropic("```python\ndef", "max_tokens"), "truncated"),
    ("anthropic", anthropic(None, "max_tokens"), "empty"),
    ("anthropic", anthropic("No.", "refusal"), "refused"),
    ("gemini", gemini(), "ok"),
    ("gemini", gemini("```python\ndef", "MAX_TOKENS"), "truncated"),
    ("gemini", gemini("par", "SAFETY"), "filtered"),
    (
        "gemini",
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 50}},
        "filtered",
    ),
]


@pytest.mark.parametrize(("provider", "body", "status"), OUTCOMES, ids=[f"{o[0]}-{o[2]}-{i}" for i, o in enumerate(OUTCOMES)])
def test_outcome(provider, body, status):
    found, server = asked(provider, json_reply(body, headers={"request-id": "req-a"}))
    assert (found.status, len(server.requests)) == (status, 1), found.error


def test_tokens_and_reasoning():
    found, _ = asked("anthropic", json_reply(anthropic()))
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"], found.reasoning) == (50, 30, "Hm.")
    found, _ = asked("gemini", json_reply(gemini()))
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"], found.usage["reasoning_tokens"]) == (50, 30, 10)
    assert found.cost_usd == pytest.approx((50 * 1 + 30 * 10) / 1e6)


@pytest.mark.parametrize("stop", ["end_turn", "max_tokens", "refusal"])
def test_anthropic_stream(stop):
    found, _ = asked("anthropic", sse(anthropic_events(stop=stop)), stream=True)
    assert found.status == {"end_turn": "ok", "max_tokens": "truncated", "refusal": "refused"}[stop], found.error
    assert (found.answer, found.request_id) == (CODE, "req-a")
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"]) == (50, 30)


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
EXHAUSTED = {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "0.2s"}]}
FAILURES = [
    ("anthropic", json_reply(OVERLOADED, 529), False, "server"),
    ("anthropic", sse(anthropic_events(stop=None)), True, "connection"),
    ("anthropic", sse(anthropic_events(stop=None), "reset"), True, "connection"),
    ("anthropic", sse([*anthropic_events(stop=None), OVERLOADED]), True, "server"),
    ("gemini", json_reply([{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}], 503), False, "server"),
    ("gemini", json_reply({"error": EXHAUSTED}, 429), False, "rate_limit"),
]


@pytest.mark.parametrize(
    ("provider", "reply", "stream", "kind"), FAILURES, ids=[f"{f[0]}-{f[3]}-{i}" for i, f in enumerate(FAILURES)]
)
def test_failure(provider, reply, stream, kind):
    good = sse(anthropic_events()) if stream else json_reply({"anthropic": anthropic, "gemini": gemini}[provider]())
    found, server = asked(provider, reply, good, stream=stream)
    assert (found.status, len(server.requests)) == ("ok", 2), found.error
    assert [f["kind"] for f in found.usage["failed_tries"]] == [kind]
    if kind == "rate_limit":
        assert found.usage["failed_tries"][0]["retry_after"] == pytest.approx(0.2)
