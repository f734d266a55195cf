"""Why a call brought no answer, and what follows from it: ask again, give up this question, or give up this model.

Decided by HTTP status and body, not by the class of an exception: litellm gives the same class to an empty account and to a
rate limit, and different ones to the same outage (``docs/generation.md``).
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from pkb.generate.wire import Exchange


class Kind(StrEnum):
    """What went wrong. The first group is asked again; of it, all but RATE_LIMIT count as signs of an outage."""

    RATE_LIMIT = "rate_limit"
    SERVER = "server"  # 5xx, or a success that says it failed
    CONNECTION = "connection"  # refused, reset, ended early
    TIMEOUT = "timeout"  # our own deadline
    MALFORMED = "malformed"  # a success without an answer in it

    FILTERED = "filtered"  # this question only: the provider's content filter
    CONTEXT = "context"  # this question only: too long for the model
    REQUEST = "request"  # this question, and probably every other: a parameter is wrong

    ACCESS = "access"  # the model: bad key, no right, unknown model, empty account

    @property
    def retried(self) -> bool:
        return self in (Kind.RATE_LIMIT, Kind.SERVER, Kind.CONNECTION, Kind.TIMEOUT, Kind.MALFORMED)

    @property
    def outage(self) -> bool:
        return self.retried and self is not Kind.RATE_LIMIT


@dataclass(eq=False)  # not frozen: raising writes to an exception
class Failure(Exception):
    """One failed call. status: of HTTP, 0 without one. retry_after: seconds that the provider asks to wait, or None."""

    kind: Kind
    message: str
    status: int = 0
    retry_after: float | None = None

    def __post_init__(self) -> None:
        # Providers' words end up on terminals: no control sequences, no reversed text.
        self.message = "".join(c if c.isprintable() else "\ufffd" for c in self.message)

    def __str__(self) -> str:
        status = f" (HTTP {self.status})" if self.status else ""
        return f"{self.kind.value}{status}: {self.message}"


#: Ends that are the provider's failure and no end of the answer.
FAILED = {"error", "abort", "insufficient_system_resource", "network_error", "OTHER", "FINISH_REASON_UNSPECIFIED"}
CONTEXT = re.compile(
    r"context.?(?:length|window|size)|maximum context|too many (?:input )?tokens|prompt is too long|input (?:is )?too (?:long|large)"
    r"|exceeds? the (?:maximum|limit).{0,40}tokens|reduce the length|string too long",
    re.IGNORECASE,
)
FILTER = re.compile(
    r"content.?(?:filter|policy|management)|responsible.?ai|moderation|flagged|safety (?:system|filter|polic)|usage policies"
    r"|prohibited.content|data_inspection_failed|sensitive (?:content|words)",
    re.IGNORECASE,
)
QUOTA = re.compile(
    r"insufficient.?(?:quota|balance|credit|funds)|exceeded your current quota|billing|credit balance|payment required|out of credits"
    r"|account.{0,40}(?:disabled|deactivated|suspended)",
    re.IGNORECASE,
)
KEY = re.compile(
    r"(?:invalid|incorrect|missing|expired|revoked|no|not valid).{0,24}api.?key|api.?key.{0,24}(?:invalid|not valid|expired)|authentication",
    re.IGNORECASE,
)
NO_MODEL = re.compile(
    r"model.{0,80}(?:not found|not.{0,10}exist|unknown|not supported|decommissioned|no access)"
    r"|(?:unknown|invalid|no such) model|no endpoints found",
    re.IGNORECASE,
)
OVERLOADED = re.compile(r"overloaded|server.?error|internal error|unavailable|at capacity|try again|temporar", re.IGNORECASE)


def of_status(status: int, body: str, headers: httpx.Headers) -> Failure:
    """The failure that a response with an error status is."""
    message = _message(body) or f"HTTP {status}"
    return Failure(_kind(status, body), message, status, retry_after(headers, body))


def of_error(error: Any, headers: httpx.Headers) -> Failure:
    """The failure that an error object inside a successful response is; its own code decides."""
    body = json.dumps(error) if not isinstance(error, str) else error
    found = error if isinstance(error, dict) else {}
    codes = (str(found.get(k, "")) for k in ("code", "status", "status_code", "http_status"))
    code = next((c for c in codes if re.fullmatch("[0-9]+", c)), None)
    words = " ".join(str(found.get(k, "")) for k in ("type", "code", "status"))
    message = _message(body) or body[:300]
    if code is not None and 400 <= int(code) < 600:
        return Failure(_kind(int(code), body), message, int(code), retry_after(headers, body))
    if re.search(r"rate.?limit|RESOURCE_EXHAUSTED|too many requests", f"{words} {message}", re.IGNORECASE):
        return Failure(Kind.ACCESS if QUOTA.search(body) else Kind.RATE_LIMIT, message, 0, retry_after(headers, body))
    if OVERLOADED.search(f"{words} {message}"):
        return Failure(Kind.SERVER, message)
    specific = _kind(400, body)
    return Failure(Kind.SERVER if specific is Kind.REQUEST else specific, message)


def of_record(record: Exchange) -> Failure | None:
    """The failure that a response with a good status turns out to be, by what the provider itself says; None when it is none."""
    facts = record.facts
    if facts.error is not None:
        return of_error(facts.error, record.headers)
    if facts.finish_reason in FAILED:
        return Failure(Kind.SERVER, f"the provider ended the answer with '{facts.finish_reason}'", record.status)
    if record.events.damaged:  # rather asked again than a model blamed for a hole in its answer
        return Failure(Kind.MALFORMED, "an event of the stream is damaged", record.status)
    if not record.complete:
        return None
    if not facts.valid:
        shown = f": {record.text[:200]!r}" if record.text else ""
        return Failure(Kind.MALFORMED, f"not a completion{shown}", record.status)
    if facts.choices == 0 and not facts.finish_reason:
        return Failure(Kind.MALFORMED, "a completion without choices", record.status)
    if record.streamed and not (facts.done or facts.finish_reason):
        return Failure(Kind.CONNECTION, "the stream ended before the answer did", record.status)
    return None


def of_exception(error: BaseException, record: Exchange) -> Failure:
    """The failure behind an exception of litellm or below, with what the record of the exchange knows."""
    if record.status >= 400:
        return of_status(record.status, record.text, record.headers)
    if 300 <= record.status < 400:
        to = (record.headers.get("location") or "nowhere")[:200]
        return Failure(Kind.ACCESS, f"the server sends calls on to {to}; correct api_base in the model's entry", record.status)
    if record.recorded and (failure := of_record(record)):
        return failure
    text = _one_line(error)
    if record.recorded:  # litellm calls every end of a connection a "Connection error"
        return Failure(Kind.MALFORMED if record.complete else Kind.CONNECTION, record.cut or text, record.status)
    status = int(getattr(error, "status_code", 0) or 0)
    if "Connection" in type(error).__name__ and not record.carried:
        return Failure(Kind.CONNECTION, text)
    if status >= 500 and record.carried:
        return Failure(Kind.REQUEST, text)  # nothing was sent, so this is litellm's number for an error of its own
    if status >= 400:
        headers = getattr(getattr(error, "response", None), "headers", None)
        return Failure(_kind(status, str(error)), text, status, retry_after(httpx.Headers(headers or {}), str(error)))
    return Failure(Kind.REQUEST, text)


def retry_after(headers: httpx.Headers, body: str = "", now: float | None = None) -> float | None:
    """Seconds that the provider asks to wait: ``retry-after-ms``, ``Retry-After`` (seconds or a date), or Gemini's ``retryDelay``."""
    value = headers.get("retry-after-ms")
    if value and (seconds := _number(value)) is not None:
        return max(0.0, seconds / 1000)
    value = headers.get("retry-after")
    if value:
        if (seconds := _number(value)) is not None:
            return max(0.0, seconds)
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now))
        except (TypeError, ValueError):
            return None
    delay = re.search(r'"retryDelay"\s*:\s*"([\d.]+)s"', body)
    return float(delay[1]) if delay else None


def _kind(status: int, body: str) -> Kind:
    if status in (401, 402):
        return Kind.ACCESS
    if status == 429:
        return (
            Kind.ACCESS
            if QUOTA.search(body) and not re.search(r"per.?(?:minute|second|hour)|rate.?limit", body)
            else Kind.RATE_LIMIT
        )
    if status in (408, 409, 425) or status >= 500:
        return Kind.SERVER
    if FILTER.search(body):
        return Kind.FILTERED
    if status == 413 or CONTEXT.search(body):
        return Kind.CONTEXT
    if status in (403, 404) or KEY.search(body) or NO_MODEL.search(body) or QUOTA.search(body):
        return Kind.ACCESS
    return Kind.REQUEST


def _message(body: str) -> str:
    """The provider's own sentence, out of the JSON around it."""
    try:
        data = json.loads(body)
    except ValueError:
        text = re.sub(r"<[^>]+>", " ", body)
        return " ".join(text.split())[:300]
    while isinstance(data, list) and data:
        data = data[0]
    if isinstance(data, dict):
        inner = data.get("error", data)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner.get("code") or json.dumps(inner)
        data = inner
    return " ".join(str(data).split())[:300]


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix("litellm.")[:300]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
