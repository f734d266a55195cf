"""From what came back to an answer with exactly one outcome, or to the failure that it is.

litellm's form of the answer is used for its text; the outcome follows the provider's own words (``facts``), because litellm turns
``finish_reason: "error"`` and pages of HTML into normal ends, and loses refusals when streaming.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pkb.generate import failures, library
from pkb.generate.facts import count, mapping
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
    if not reply.text.strip():
        reply = of_document(record) or reply
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


def of_document(record: Exchange) -> Reply | None:
    """The answer in a complete document of OpenAI's form that litellm does not take, and which is paid for all the same.

    Seen: content in parts, counts that are no integers, a document although a stream was asked for. None when there is no text.
    """
    if not record.complete or record.status != 200 or record.streamed:
        return None
    try:
        data = mapping(json.loads(record.body))
    except (ValueError, RecursionError):
        return None
    choices = data.get("choices")
    first = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message = mapping(first.get("message"))
    text = text_of(message.get("content"))
    if not text.strip():
        return None
    return Reply(
        text=text,
        reasoning=text_of(message.get("reasoning_content")),
        finish_reason=text_of(first.get("finish_reason")),
        refusal=text_of(message.get("refusal")),
        usage=mapping(data.get("usage")),
        response_id=text_of(data.get("id")),
    )


def text_of(content: Any) -> str:
    """Content as text: providers may send a list of parts."""
    if isinstance(content, list):
        return "".join(text_of(part) for part in content if isinstance(part, dict))
    if isinstance(content, dict):
        return text_of(content.get("text"))
    return "" if content is None else str(content)


def count_tokens(reply: Reply, record: Exchange) -> dict[str, Any]:
    """Tokens by kind: prompt_tokens (cached_tokens among them), completion_tokens (reasoning_tokens among them).

    ``estimated``: the provider sent no counts, or none for a text that it did send, so these are a tokenizer's, or zeros. ``raw``:
    what it sent.
    """
    usage, raw = reply.usage, record.facts.usage
    details, completion = mapping(usage.get("prompt_tokens_details")), mapping(usage.get("completion_tokens_details"))
    tokens = {
        "prompt_tokens": count(usage.get("prompt_tokens")),
        "cached_tokens": count(details.get("cached_tokens")),
        "completion_tokens": count(usage.get("completion_tokens")),
        "reasoning_tokens": count(completion.get("reasoning_tokens")),
    }
    counted = bool(raw) if record.recorded else bool(usage.get("total_tokens"))
    if counted and not tokens["completion_tokens"] and (reply.text.strip() or reply.reasoning.strip()):
        counted = False
    if not counted:
        tokens["completion_tokens"] = estimate_tokens(reply.text) + estimate_tokens(reply.reasoning)
    return {**tokens, "estimated": not counted, **({"raw": raw} if raw else {})}


def estimate_tokens(text: str) -> int:
    """Tokens of a text by the tokenizer that litellm ships; needs no network."""
    return int(library.load().token_counter(model="", text=text)) if text else 0
