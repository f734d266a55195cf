"""A client whose waits are short, and a way to ask it once."""

import asyncio
import dataclasses

import pytest

from pkb.config import BudgetConfig, GenerationConfig
from pkb.generate.client import Client
from pkb.generate.models import Model, Prices
from pkb.records import AttemptKey

KEY = "sk-secret-of-the-tests"
FAST = GenerationConfig(
    max_in_flight=32,
    max_retries=3,
    max_rate_limited=5,
    max_timeouts=1,
    retry_seconds=0.02,
    retry_cap_seconds=0.1,
    outage_failures=50,
    outage_seconds=0.2,
    outage_pauses=2,
)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)


def model_at(server, name="m", **settings):
    """A model behind a loopback server."""
    values = {"api_base": server.url, "key_env": "TEST_PROVIDER_KEY", "timeout_seconds": 20.0, "idle_seconds": 20.0}
    return Model(name, f"openai/{name}", prices=Prices(1.0, 10.0, 0.5), **{**values, **settings})


def key_of(model, attempt=0, problem="001_allreduce"):
    return AttemptKey("run", model.name, problem, attempt)


def ask(*questions, config=FAST, budget=None, client=None, **settings):
    """The generations for these (model, attempt) or models, asked at the same time by one client."""
    pairs = [q if isinstance(q, tuple) else (q, 0) for q in questions]
    models = list({m.name: m for m, _ in pairs}.values())

    async def main():
        asked = client or Client(config, models, budget or BudgetConfig(), **settings)
        try:
            messages = [{"role": "user", "content": "Write a kernel."}]
            return await asyncio.gather(*(asked.generate(m, key_of(m, attempt), messages) for m, attempt in pairs))
        finally:
            await asked.close()

    return asyncio.run(main())


def faster(**changes):
    return dataclasses.replace(FAST, **changes)
