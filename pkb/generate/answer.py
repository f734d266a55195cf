"""From what came back to an answer with exactly one outcome, or to the failure that it is.

litellm's form of the answer is used for its text; the outcome follows the provider's own words (``facts``), because litellm turns
``finish_reason: "error"`` and pages of HTML into normal ends, and loses refusals when streaming.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pkb.generate import failures, library
from pkb.generate.events import text_of, texts_of
from pkb.generate.facts import mapping, tokens_of
from pkb.generate.failures import Failure, Kind
from pkb.generate.wire import Exchange
from pkb.verdict import GenerationStatus

LENGTH = {"length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens", "model_context_window_exceeded"}
FILTER = {
    "content_filter",
    "SAFETY",
    "RECITATION",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
    "content_filtered",
    "guardrail_intervened",
    "sensitive",
}
REFUSAL = {"refusal"}
#: Letters of a text whose tokens are counted: more would hold up all other calls for seconds.
MOST_COUNTED = 200_000


@dataclass(frozen=True)
class Reply:
    """What litellm made of a response, streamed or not."""

    text: str
    reasoning: str
    finish_reason: str
    refusal: str
    usage: Mapping[str, Any]
    response_id: str


@dataclass(frozen=True)
class Answer:
    """One answer that was given, and paid for. tokens: counts by kind; estimated: whether we counted, not the provider."""

    status: GenerationStatus
    text: str
    reasoning: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""


def judge(reply: Reply, record: Exchange) -> Answer:
    """The answer in a reply; raises Failure when there is none in it that a model could be judged by."""
    if (own := own_reading(record)) is not None and _length(own) > _length(reply):  # litellm passes over parts of some answers
        reply = replace(reply, text=own.text, reasoning=own.reasoning or reply.reasoning)
    facts = record.facts
    if record.recorded and (failure := failures.of_record(record)):
        raise failure
    finish = facts.finish_reason or reply.finish_reason
    if finish in failures.FAILED:
        raise Failure(Kind.SERVER, f"the provider ended the answer with '{finish}'", record.status)
    usage = count_tokens(reply, record)
    refusal = facts.refusal or reply.refusal
    status = _status(finish, refusal, reply.text, usage)
    if status is None:
        raise Failure(Kind.MALFORMED, "an empty answer for which no token was counted", record.status)
    return Answer(status, reply.text or refusal, reply.reasoning, finish, usage, record.request_id or reply.response_id)


def _length(reply: Reply) -> int:
    return len(reply.text) + len(reply.reasoning)


def _status(finish: str, refusal: str, text: str, usage: Mapping[str, Any]) -> GenerationStatus | None:
    if finish in FILTER:
        return GenerationStatus.FILTERED
    if refusal or finish in REFUSAL:
        return GenerationStatus.REFUSED
    if not text.strip():
        # Tokens without text are the model's doing (hidden reasoning, an immediate end); neither is the provider's.
        spent = finish in LENGTH or (usage["completion_tokens"] > 0 and not usage["estimated"])
        return GenerationStatus.EMPTY if spent or finish == "tool_calls" else None
    return GenerationStatus.TRUNCATED if finish in LENGTH else GenerationStatus.OK


def own_reading(record: Exchange) -> Reply | None:
    """The answer in a response that litellm does not take, and which is paid for all the same; None when there is none.

    Seen: content in parts, counts that are no integers, a document although a stream was asked for, a stream that nobody closes
    after its end.
    """
    if record.status != 200:
        return None
    facts, response_id = record.facts, ""
    if record.streamed:
        if not (facts.finish_reason or facts.done):
            return None
        text, reasoning = record.events.text, record.events.reasoning
    else:
        if not record.complete:
            return None
        try:
            data = mapping(json.loads(record.body))
        except (ValueError, RecursionError):
            return None
        text, reasoning = texts_of(data)
        response_id = text_of(data.get("id"))
        if not text.strip():
            return None
    return Reply(text, reasoning, facts.finish_reason, facts.refusal, {}, response_id)


def count_tokens(reply: Reply, record: Exchange) -> dict[str, Any]:
    """Tokens by kind: prompt_tokens (cached_tokens among them), completion_tokens (reasoning_tokens among them).

    ``estimated``: the provider sent no counts, or none for a text that it did send, so these are a tokenizer's, or zeros. ``raw``:
    what it sent.
    """
    usage, raw = reply.usage, record.facts.usage
    # litellm's own counts are those of its tokenizer where a stream's form is unusual, and do not say so.
    tokens = tokens_of(raw)
    if not tokens["prompt_tokens"] and not tokens["completion_tokens"]:
        tokens = tokens_of(dict(usage))
    elif not tokens["reasoning_tokens"]:
        tokens["reasoning_tokens"] = min(tokens_of(dict(usage))["reasoning_tokens"], tokens["completion_tokens"])
    counted = bool(raw) if record.recorded else bool(usage.get("total_tokens"))
    if counted and not tokens["completion_tokens"] and (reply.text.strip() or reply.reasoning.strip()):
        counted = False
    if not counted:
        tokens["completion_tokens"] = estimate_tokens(reply.text) + estimate_tokens(reply.reasoning)
    return {**tokens, "estimated": not counted, **({"raw": raw} if raw else {})}


def cut_off_tokens(record: Exchange, prompt: str, most: int) -> dict[str, int] | None:
    """An estimate of what was billed for a stream that ended before its count came, beyond what it had counted by then.

    most: that an answer may have. None when there is nothing to estimate: no text has come, or all is counted.
    """
    facts = record.facts
    if not record.streamed or record.status != 200 or (facts.usage and (facts.done or facts.finish_reason)):
        return None
    heard = estimate_tokens(record.events.text) + estimate_tokens(record.events.reasoning)
    counted = tokens_of(facts.usage)
    asked = 0 if counted["prompt_tokens"] else estimate_tokens(prompt)
    missing = max(0, min(heard, most) - counted["completion_tokens"])
    if not heard or not (asked or missing):
        return None
    return {"prompt_tokens": asked, "cached_tokens": 0, "completion_tokens": missing, "reasoning_tokens": 0}


def estimate_tokens(text: str) -> int:
    """Tokens of a text by the tokenizer that litellm ships; needs no network. Of a long one, from its first MOST_COUNTED letters."""
    if not text:
        return 0
    counted = int(library.load().token_counter(model="", text=text[:MOST_COUNTED]))
    return counted if len(text) <= MOST_COUNTED else counted * len(text) // MOST_COUNTED
