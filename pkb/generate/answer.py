"""From what came back to an answer with exactly one outcome, or to the failure that it is.

litellm's form of the answer is used for its text; the outcome follows the provider's own words (``facts``), because litellm turns
``finish_reason: "error"`` and pages of HTML into normal ends, and loses refusals when streaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pkb.generate import failures, library
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


def count_tokens(reply: Reply, record: Exchange) -> dict[str, Any]:
    """Tokens by kind: prompt_tokens (cached_tokens among them), completion_tokens (reasoning_tokens among them).

    ``estimated``: the provider sent no counts, so these are a tokenizer's, or zeros. ``raw``: what it sent.
    """
    usage, raw = reply.usage, record.facts.usage
    counted = bool(raw) if record.recorded else bool(usage.get("total_tokens"))
    details = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    tokens = {
        "prompt_tokens": int(usage.get("prompt_tokens") or 0),
        "cached_tokens": int(details.get("cached_tokens") or 0),
        "completion_tokens": int(usage.get("completion_tokens") or 0),
        "reasoning_tokens": int(completion.get("reasoning_tokens") or 0),
    }
    if not counted:
        tokens["completion_tokens"] = estimate_tokens(reply.text) + estimate_tokens(reply.reasoning)
    return {**tokens, "estimated": not counted, **({"raw": raw} if raw else {})}


def estimate_tokens(text: str) -> int:
    """Tokens of a text by the tokenizer that litellm ships; needs no network."""
    return int(library.load().token_counter(model="", text=text)) if text else 0
