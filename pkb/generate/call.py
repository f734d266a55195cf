"""One call: parameters in, what litellm makes of the response out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pkb.generate.answer import Reply
from pkb.generate.events import text_of
from pkb.generate.models import Model


def parameters_of(model: Model) -> dict[str, Any]:
    """The model's settings as arguments of ``litellm.acompletion``; what is not set is not sent."""
    parameters: dict[str, Any] = {"max_tokens": model.max_tokens}
    for name in ("temperature", "top_p"):
        if (value := getattr(model, name)) is not None:
            parameters[name] = value
    if model.reasoning_effort:
        parameters["reasoning_effort"] = model.reasoning_effort
    if model.thinking_tokens:
        parameters["thinking"] = {"type": "enabled", "budget_tokens": model.thinking_tokens}
    if model.stream:
        parameters |= {"stream": True, "stream_options": {"include_usage": True}}
    return parameters | dict(model.extra)


async def call(litellm: Any, model: Model, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> Reply:
    """Ask once. Raises TimeoutError when a stream is silent for ``idle_seconds``, else whatever litellm raises."""
    parameters = {**parameters_of(model), **arguments}
    headers = {**model.extra.get("extra_headers", {}), **arguments.get("extra_headers", {})}
    if headers:
        parameters["extra_headers"] = headers
    response = await litellm.acompletion(
        model=model.model,
        messages=messages,
        api_base=model.api_base or None,
        api_key=model.key() or ("none" if model.api_base else None),
        # Ours fires first; litellm's limits single reads, not the call.
        timeout=model.timeout_seconds + 60.0,
        max_retries=0,
        num_retries=0,
        **parameters,
    )
    return await _collect(response, model.idle_seconds) if model.stream else _reply(response)


def _reply(response: Any) -> Reply:
    choices = getattr(response, "choices", None) or []
    message = choices[0].message if choices else None
    return Reply(
        text=text_of(getattr(message, "content", None)),
        reasoning=text_of(getattr(message, "reasoning_content", None)),
        finish_reason=str((choices[0].finish_reason if choices else "") or ""),
        refusal=text_of(getattr(message, "refusal", None)),
        usage=_usage(response),
        response_id=str(getattr(response, "id", "") or ""),
    )


async def _collect(stream: Any, idle_seconds: float) -> Reply:
    text: list[str] = []
    reasoning: list[str] = []
    usage: dict[str, Any] = {}
    finish = response_id = ""
    chunks = aiter(stream)
    try:
        while True:
            try:
                async with asyncio.timeout(idle_seconds):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                break
            response_id = response_id or str(getattr(chunk, "id", "") or "")
            usage = _usage(chunk) or usage
            for choice in (chunk.choices or [])[:1]:
                text.append(text_of(getattr(choice.delta, "content", None)))
                reasoning.append(text_of(getattr(choice.delta, "reasoning_content", None)))
                finish = choice.finish_reason or finish
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    return Reply("".join(text), "".join(reasoning), finish, "", usage, response_id)


def _usage(response: Any) -> dict[str, Any]:
    usage = getattr(response, "usage", None)
    return usage.model_dump(exclude_none=True) if usage is not None else {}
