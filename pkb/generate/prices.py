"""What an answer cost, and by which table; and what else that table knows of a model."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pkb.config import BudgetConfig
from pkb.errors import UserError
from pkb.generate import library
from pkb.generate.models import Model, Prices


def prices_of(model: Model) -> Prices | None:
    """The model's prices: its entry's own, else litellm's table; None when neither knows the model."""
    if model.prices is not None:
        return model.prices
    table = library.load().model_cost
    for name in (model.model, model.model.split("/", 1)[1]):
        entry = table.get(name)
        if entry and entry.get("input_cost_per_token") is not None and entry.get("output_cost_per_token") is not None:
            cached = entry.get("cache_read_input_token_cost")
            return Prices(
                entry["input_cost_per_token"] * 1e6,
                entry["output_cost_per_token"] * 1e6,
                cached * 1e6 if cached is not None else None,
            )
    return None


def question_tokens(model: Model) -> int | None:
    """How long a question may be: the context window in litellm's table less the answer, or half where no more is left; else None."""
    table = library.load().model_cost
    for name in (model.model, model.model.split("/", 1)[1]):
        window = (table.get(name) or {}).get("max_input_tokens")
        if isinstance(window, int) and window > 0:
            return max(window - model.max_tokens, window // 2)
    return None


def cost_usd(prices: Prices | None, usage: Mapping[str, Any]) -> float | None:
    """Dollars for these tokens: (prompt - cached) x input + cached x cached_input + completion x output. None when unknown."""
    if prices is None:
        return None
    cached = min(usage["cached_tokens"], usage["prompt_tokens"])
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    fresh = usage["prompt_tokens"] - cached
    return (fresh * prices.input + cached * cached_price + usage["completion_tokens"] * prices.output) / 1e6


def check_prices(models: Sequence[Model], budget: BudgetConfig) -> None:
    """Raise UserError when a budget in dollars is set and the price of a model that it limits is unknown."""
    for model in models:
        if (model.budget_usd or budget.cost_usd) and prices_of(model) is None:
            raise UserError(
                f"the price of '{model.name}' is unknown, so a budget in dollars cannot hold; add prices to its entry"
            )


@functools.cache
def table_version(own: bool) -> str:
    """Names the price table, so that a cost can be recomputed: ``conf`` or litellm's version and a hash of its table."""
    if own:
        return "conf"
    digest = hashlib.sha256(json.dumps(library.load().model_cost, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"litellm {importlib.metadata.version('litellm')} {digest}"
