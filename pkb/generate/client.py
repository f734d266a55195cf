"""Calls to models: one question in, one Generation out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from pkb.config import GenerationConfig
from pkb.extract import extract
from pkb.generate import replay
from pkb.generate.models import Model
from pkb.prompt import prompt_hash
from pkb.records import AttemptKey, Generation
from pkb.verdict import GenerationStatus


class Client:
    """Asks models; one per run, used from one event loop."""

    def __init__(self, config: GenerationConfig, models: Sequence[Model]) -> None:
        self._config = config
        self._models = {m.name: m for m in models}
        self._litellm = _litellm()

    async def generate(self, model: Model, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        """The model's answer to one conversation."""
        prompt = messages[-1]["content"]
        started = time.monotonic()
        sent: dict[str, Any] = {"model": model.model, "max_tokens": model.max_tokens}
        extra: dict[str, Any] = {}
        if model.provider == replay.PROVIDER:
            extra["recording"] = (model, key.problem, key.attempt, key.turn)
        try:
            response = await self._litellm.acompletion(
                messages=messages, max_retries=0, num_retries=0, timeout=model.timeout_seconds, **sent, **extra
            )
        except Exception as error:
            return Generation(
                key, GenerationStatus.PROVIDER_ERROR, prompt, prompt_hash(prompt), sent=sent, error=str(error).splitlines()[0]
            )
        choice = response.choices[0]
        answer = choice.message.content or ""
        truncated = choice.finish_reason == "length"
        found = extract(answer, truncated)
        status = GenerationStatus.TRUNCATED if truncated else GenerationStatus.OK if answer else GenerationStatus.EMPTY
        return Generation(
            key,
            status,
            prompt,
            prompt_hash(prompt),
            answer=answer,
            source=found.source,
            extraction=found.reason or found.status.value,
            finish_reason=choice.finish_reason,
            sent=sent,
            usage=response.usage.model_dump(),
            cost_usd=0.0 if model.provider == replay.PROVIDER else None,
            seconds=time.monotonic() - started,
            request_id=response.id,
        )

    async def close(self) -> None:
        """Close connections."""


def _litellm() -> Any:
    """litellm, imported without reaching for the network, logging nothing and reporting to nobody."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    litellm.custom_provider_map = [{"provider": replay.PROVIDER, "custom_handler": replay.handler()}]
    return litellm
