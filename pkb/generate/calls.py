"""Notes of calls: what a session that was killed had asked, and what became of it (``spool`` keeps them)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pkb.generate.models import Model
from pkb.records import Generation

Note = dict[str, Any]
#: Kind of a call of which nobody knows what became.
LOST = "lost"


@dataclass(frozen=True)
class Past:
    """A question's calls so far that brought no answer that counts. failures: as in a row's ``usage.failed_tries``. wasted: tokens
    that were billed for them. answered: how many the provider answered for certain.
    """

    failures: list[Note]
    wasted: list[Note]
    answered: int


def asked(model: Model, arguments: Mapping[str, Any]) -> Note:
    """A call goes out."""
    headers = arguments.get("extra_headers") or {}
    key = headers.get(model.idempotency_header, "")
    return {"asked": round(time.time(), 3), "model": model.name, "idempotency_key": key}


def failed(model: Model, failure: Note, tokens: Note | None) -> Note:
    """It has brought no answer. tokens: billed all the same; the failure's ``estimated_tokens``: probably, too."""
    return {"failed": failure, "tokens": tokens and {**tokens, "model": model.name}, "model": model.name}


def of_uncounted(generation: Generation) -> Iterator[Note]:
    """An answer that the provider has billed and that does not count (filtered), as the failed try that it is to the next one."""
    usage = generation.usage
    if "completion_tokens" in usage:
        kinds = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
        failure = {
            "kind": generation.status.value,
            "status": 200,
            "message": f"ended as {generation.finish_reason or generation.status.value}",
            "seconds": round(generation.seconds, 3),
            "retry_after": None,
            "request_id": generation.request_id,
        }
        yield {"failed": failure, "tokens": {**{k: usage[k] for k in kinds}, "model": generation.key.model}}


def past(notes: Sequence[Note], kept: bool) -> Past:
    """What the notes say. kept: the response to the last call waits in the spool, so that call is not lost."""
    failures: list[Note] = []
    wasted: list[Note] = []
    open_call: Note | None = None
    for note in notes:
        if "asked" in note:
            if open_call:
                failures.append(_lost(open_call))
            open_call = note
        elif "failed" in note:
            failures.append(note["failed"])
            if note["tokens"]:
                wasted.append({kind: n for kind, n in note["tokens"].items() if kind != "model"})
            open_call = None
    if open_call and not kept:
        failures.append(_lost(open_call))
    return Past(failures, wasted, sum(failure["status"] > 0 for failure in failures))


def unrecorded(notes: Sequence[Note]) -> Iterator[Note]:
    """Tokens, with their ``model``, that no row tells of yet, the estimated ones too."""
    rows = [i for i, note in enumerate(notes) if "recorded" in note]
    for note in notes[rows[-1] + 1 if rows else 0 :]:
        if note.get("tokens"):
            yield note["tokens"]
        if estimated := note.get("failed", {}).get("estimated_tokens"):
            yield {**estimated, "model": note["model"]}


def _lost(call: Note) -> Note:
    return {
        "kind": LOST,
        "status": 0,
        "message": "the session ended while this call was under way; the provider may have billed it",
        "seconds": 0.0,
        "retry_after": None,
        "request_id": "",
        "asked": call["asked"],
        "idempotency_key": call["idempotency_key"],
    }
