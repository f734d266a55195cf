"""What a sweep will ask and what that may cost, before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkb.generate.answer import estimate_tokens
from pkb.generate.models import Model
from pkb.generate.prices import cost_usd, prices_of, table_version

#: Output tokens of the cheapest answer to be expected: a short kernel, without hidden reasoning.
SHORT_ANSWER = 1000


@dataclass(frozen=True)
class Forecast:
    """Of one model: calls still to be made, their prompt tokens (a tokenizer's estimate), and the range of the cost in dollars:
    from answers of SHORT_ANSWER tokens to answers that use up max_tokens. None where the price is unknown. prices: the table's
    version.
    """

    model: str
    calls: int
    prompt_tokens: int
    cost_low_usd: float | None
    cost_high_usd: float | None
    prices: str | None


def forecast(models: Sequence[Model], prompts: Mapping[str, str], calls: Mapping[str, Mapping[str, int]]) -> list[Forecast]:
    """One entry per model. prompts: by problem; calls: by model and problem, how many questions are left."""
    tokens = {problem: estimate_tokens(prompt) for problem, prompt in prompts.items()}
    found = []
    for model in models:
        left = calls.get(model.name, {})
        number = sum(left.values())
        asked = sum(tokens[problem] * count for problem, count in left.items())
        prices = prices_of(model)

        def cost(output: int, prompt: int = asked, prices=prices) -> float | None:  # type: ignore[no-untyped-def]
            return cost_usd(prices, {"prompt_tokens": prompt, "cached_tokens": 0, "completion_tokens": output})

        low, high = cost(number * min(SHORT_ANSWER, model.max_tokens)), cost(number * model.max_tokens)
        version = table_version(model.prices is not None) if prices else None
        found.append(Forecast(model.name, number, asked, low, high, version))
    return found
