"""litellm as this project uses it: no look into the network on import, no telemetry, no log, every request through ``wire``."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import warnings
from typing import Any

from pkb.errors import UserError
from pkb.generate import replay
from pkb.generate.models import Model
from pkb.generate.wire import Transport

#: Providers that litellm calls through a handler of its own, which takes our client as an argument. The others that matter go
#: through the OpenAI library, which takes the session that is set globally. A provider in neither set works, unrecorded: what was
#: sent is then what we asked for, the outcome is what litellm says, and a killed process loses the answer it had.
OWN_HANDLER = {
    "anthropic",
    "deepseek",
    "fireworks_ai",
    "gemini",
    "groq",
    "hosted_vllm",
    "minimax",
    "mistral",
    "openrouter",
    "together_ai",
    "xai",
}
OPENAI_LIBRARY = {"openai", "azure", "moonshot", "zai", "dashscope"}


@functools.cache
def load() -> Any:
    """litellm, configured; the first call imports it (seconds)."""
    # Both are read on import. Without the first a price map is fetched; without the second a finished stream of equal chunks
    # is taken for a model that repeats itself, and a table of zeros is just that.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["REPEATED_STREAMING_CHUNK_LIMIT"] = str(10**9)
    warnings.filterwarnings("ignore", module=r"(litellm|pydantic)\b")  # between the two of them; no user can act on it
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # what was dropped shows in what was sent
    litellm.custom_provider_map = [{"provider": replay.PROVIDER, "custom_handler": replay.handler()}]
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by us, without keys
    return litellm


def check_provider(model: Model) -> None:
    """Raise UserError when litellm does not know the provider of this model."""
    known = {str(getattr(name, "value", name)) for name in load().provider_list} | {replay.PROVIDER}
    if model.provider not in known:
        near = difflib.get_close_matches(model.provider, known, 1, 0.6)
        hint = f"did you mean '{near[0]}'?" if near else "for any server with OpenAI's protocol write openai/... and api_base"
        raise UserError(f"model '{model.name}': litellm knows no provider '{model.provider}'; {hint}")


def carries(model: Model) -> bool:
    """Whether this model's requests pass through our transport; those that litellm takes to OpenAI's Responses API do not."""
    names = (model.model, model.model.split("/", 1)[1])
    modes = {load().model_cost.get(name, {}).get("mode") for name in names}
    return model.provider in OWN_HANDLER | OPENAI_LIBRARY and "responses" not in modes


class Connections:
    """The HTTP clients that litellm is given; of one event loop."""

    def __init__(self, litellm: Any, most: int) -> None:
        import httpx
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        self._litellm = litellm
        self._transport = Transport(most)
        self._session = httpx.AsyncClient(transport=self._transport, follow_redirects=True, timeout=None)
        self._handler = AsyncHTTPHandler(transport=self._transport)
        litellm.in_memory_llm_clients_cache.flush_cache()  # clients cached there hold the session of an earlier loop
        litellm.aclient_session = self._session

    def arguments(self, model: Model) -> dict[str, Any]:
        """What ``acompletion`` needs to use our transport for this model."""
        return {"client": self._handler} if model.provider in OWN_HANDLER else {}

    async def close(self) -> None:
        """Close all connections."""
        if self._litellm.aclient_session is self._session:
            self._litellm.aclient_session = None
            self._litellm.in_memory_llm_clients_cache.flush_cache()
        await self._session.aclose()
        await self._transport.aclose()
