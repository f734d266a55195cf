"""What a sweep will ask and what that may cost, before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkb.generate.answer import estimate_tokens
from pkb.generate.models import Model
from pkb.generate.prices import cost_usd, prices_of, table_version

#: Output tokens of the cheapest answer to be expected: a short kernel, without hidden reasoning.
SHORT_ANSWER = 1000


#: Tokens of what a model is told about one answer: a profile with tables, or a diagnosis with excerpts.
FEEDBACK = 1000


@dataclass(frozen=True)
class Conversation:
    """How far attempts may go on. turns: the most questions of one; context_tokens: the longest of these questions."""

    turns: int = 1
    context_tokens: int = 0


@dataclass(frozen=True)
class Forecast:
    """Of one model: calls still to be made, their prompt tokens (a tokenizer's estimate), and the range of the cost in dollars.

    calls, prompt_tokens, cost_high_usd: every attempt takes all of its turns and every answer uses up max_tokens. The ``low`` ones:
    one turn each, and answers of SHORT_ANSWER tokens. None where the price is unknown. prices: the table's version.
    """

    model: str
    calls_low: int
    calls: int
    prompt_tokens_low: int
    prompt_tokens: int
    cost_low_usd: float | None
    cost_high_usd: float | None
    prices: str | None


def forecast(
    models: Sequence[Model],
    prompts: Mapping[str, str],
    calls: Mapping[str, Mapping[str, int]],
    begun: Mapping[str, Mapping[str, int]] | None = None,
    conversation: Conversation = Conversation(),
) -> list[Forecast]:
    """One entry per model. prompts: by problem; calls: by model and problem, how many attempts have had no question yet; begun:
    likewise those that are not over after one turn or more, all of whose further turns count, however many they have had.
    """
    tokens = {problem: estimate_tokens(prompt) for problem, prompt in prompts.items()}
    found = []
    for model in models:
        new, old = calls.get(model.name, {}), (begun or {}).get(model.name, {})
        least, most = sum(new.values()), sum(new.values()) * conversation.turns + sum(old.values()) * (conversation.turns - 1)
        asked = sum(tokens[problem] * count for problem, count in new.items())
        asked_most = sum(
            count * sum(_question(tokens[problem], turn, model, conversation) for turn in range(start, conversation.turns))
            for start, left in ((0, new), (1, old))
            for problem, count in left.items()
        )
        prices = prices_of(model)

        def cost(output: int, prompt: int, prices=prices) -> float | None:  # type: ignore[no-untyped-def]
            return cost_usd(prices, {"prompt_tokens": prompt, "cached_tokens": 0, "completion_tokens": output})

        low, high = cost(least * min(SHORT_ANSWER, model.max_tokens), asked), cost(most * model.max_tokens, asked_most)
        version = table_version(model.prices is not None) if prices else None
        found.append(Forecast(model.name, least, most, asked, asked_most, low, high, version))
    return found


def _question(task: int, turn: int, model: Model, conversation: Conversation) -> int:
    """Tokens of the longest question of a turn: the task, and answers and feedback as far as they are kept."""
    return max(task, min(conversation.context_tokens, task + turn * (model.max_tokens + FEEDBACK))) if turn else task
