"""What a provider's own JSON says about an answer, before litellm has put it into another form.

Read from the three shapes there are (OpenAI's, Anthropic's, Gemini's), as one document or as the events of a stream.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

#: More in one call is no number of tokens.
MOST_TOKENS = 10**9


@dataclass(frozen=True)
class Facts:
    """valid: the body is JSON of a known shape. choices: answers in it. finish_reason: in the provider's own words, empty when
    it gave none. refusal: text of an explicit refusal. usage: as sent, empty when none came. error: the error object of a
    response that is otherwise a success. done: a stream said that it is at its end.
    """

    valid: bool = False
    choices: int = 0
    finish_reason: str = ""
    refusal: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    done: bool = False


def facts_of_json(body: bytes) -> Facts:
    """Facts of a response that is one document."""
    try:
        data = json.loads(body, parse_constant=lambda word: None)  # NaN has no place in the row's JSON
    except (ValueError, RecursionError):
        return Facts()
    if isinstance(data, list) and len(data) == 1:  # Gemini sends errors so
        data = data[0]
    return replace(_facts(data), done=True) if isinstance(data, dict) else Facts()


def read_event(facts: Facts, event: Any) -> Facts:
    """The facts so far with those of one more event of a stream: its JSON, or the word ``[DONE]``."""
    if event == "[DONE]":
        return replace(facts, done=True)
    if not isinstance(event, dict):
        return facts
    new = _facts(event)
    return Facts(
        valid=facts.valid or new.valid,
        choices=max(facts.choices, new.choices),
        finish_reason=new.finish_reason or facts.finish_reason,
        refusal=facts.refusal + new.refusal,
        # Counts grow; what comes last, and is no empty repetition, stands.
        usage={**facts.usage, **{k: v for k, v in new.usage.items() if v or k not in facts.usage}},
        error=facts.error or new.error,
        done=facts.done or event.get("type") == "message_stop",
    )


def _facts(data: dict[str, Any]) -> Facts:
    error = data.get("error") or (data if data.get("type") == "error" else None)
    if isinstance(data.get("choices"), list):
        return _openai(data, error)
    if "candidates" in data or "promptFeedback" in data or "usageMetadata" in data:
        return _gemini(data, error)
    if data.get("type") in ("message", "message_start", "message_delta") or "stop_reason" in data:
        return _anthropic(data, error)
    known = error is not None or data.get("type") in (
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "ping",
    )
    return Facts(valid=known, usage=mapping(data.get("usage")), error=error)


def _openai(data: dict[str, Any], error: Any) -> Facts:
    choices = [c for c in data["choices"] if isinstance(c, dict)]
    first = choices[0] if choices else {}
    message = mapping(first.get("message")) or mapping(first.get("delta"))
    return Facts(
        valid=True,
        choices=len(choices),
        finish_reason=str(first.get("finish_reason") or ""),
        refusal=str(message.get("refusal") or ""),
        usage=mapping(data.get("usage")),
        error=error or first.get("error"),
    )


def _anthropic(data: dict[str, Any], error: Any) -> Facts:
    inner = mapping(data.get("message")) or mapping(data.get("delta")) or data
    return Facts(
        valid=True,
        choices=1,
        finish_reason=str(inner.get("stop_reason") or ""),
        usage={**mapping(inner.get("usage")), **mapping(data.get("usage"))},
        error=error,
    )


def _gemini(data: dict[str, Any], error: Any) -> Facts:
    candidates = [c for c in data.get("candidates") or [] if isinstance(c, dict)]
    finish = str(candidates[0].get("finishReason") or "") if candidates else ""
    blocked = str(mapping(data.get("promptFeedback")).get("blockReason") or "")
    return Facts(
        valid=True,
        choices=len(candidates),
        finish_reason=finish or blocked,
        usage=mapping(data.get("usageMetadata")),
        error=error,
    )


def mapping(value: Any) -> dict[str, Any]:
    """The value when it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int:
    """A provider's number of tokens; 0 for what cannot be one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(number) if math.isfinite(number) and 0 <= number <= MOST_TOKENS else 0


def tokens_of(usage: dict[str, Any]) -> dict[str, int]:
    """Tokens by kind out of a usage object in any of the three shapes; kinds as in ``answer.count_tokens``.

    Anthropic counts cached input apart from the rest, Gemini thoughts apart from the answer, and so does xAI, which shows in its
    total.
    """

    def first(*names: str) -> int:
        return next((count(usage[n]) for n in names if usage.get(n) is not None), 0)

    details, completion = mapping(usage.get("prompt_tokens_details")), mapping(usage.get("completion_tokens_details"))
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    asked = first("prompt_tokens", "input_tokens", "promptTokenCount") + (read + written if "input_tokens" in usage else 0)
    answered = first("completion_tokens", "output_tokens", "candidatesTokenCount")
    thoughts = count(usage.get("thoughtsTokenCount"))
    reasoning = count(completion.get("reasoning_tokens")) or thoughts
    if "completion_tokens" in usage and 0 < reasoning == count(usage.get("total_tokens")) - asked - answered:
        thoughts = reasoning
    cached = count(details.get("cached_tokens")) or read
    return {
        "prompt_tokens": asked,
        "cached_tokens": cached or first("cachedContentTokenCount", "prompt_cache_hit_tokens", "cached_tokens"),
        "completion_tokens": answered + thoughts,
        "reasoning_tokens": reasoning,
    }
