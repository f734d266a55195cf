"""Money, tokens and time: what a run may spend, and what is still free of it while calls are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from pkb.config import BudgetConfig


@dataclass
class Spent:
    """What has been spent on one model: dollars (estimated where a price is unknown: not at all), tokens, answers paid for."""

    cost_usd: float = 0.0
    tokens: int = 0
    calls: int = 0


class Budget:
    """Limits of a run and of its models; reached, no new call starts, and those in flight are waited for and kept.

    Calls in flight hold a reservation of what such a call has cost on average, so that many at once do not overshoot the limit by
    all of theirs: a call starts only when its share is free, or when nothing else is in flight. earlier: by model, what earlier
    sessions of the run spent. per_model: dollars by model, 0 for no limit.
    """

    def __init__(
        self,
        config: BudgetConfig,
        per_model: Mapping[str, float],
        earlier: Mapping[str, Spent] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._per_model = per_model
        self._clock = clock
        self._started = clock()
        self.spent: defaultdict[str, Spent] = defaultdict(
            Spent, {name: Spent(**vars(s)) for name, s in (earlier or {}).items()}
        )
        self._reserved: defaultdict[str, Spent] = defaultdict(Spent)
        self._settled = asyncio.Condition()

    def exhausted(self, model: str) -> str | None:
        """Why nothing may be asked of this model any more, in one line; None while it may."""
        limits = self._config
        total = self._sum(self.spent)
        if limits.seconds and self._clock() - self._started >= limits.seconds:
            return f"budget.seconds={limits.seconds:g} is used up"
        if limits.tokens and total.tokens >= limits.tokens:
            return f"budget.tokens={limits.tokens} is used up ({total.tokens} tokens)"
        if limits.cost_usd and total.cost_usd >= limits.cost_usd:
            return f"budget.cost_usd={limits.cost_usd:g} is used up ({_dollars(total.cost_usd)})"
        own = self._per_model.get(model, 0.0)
        if own and self.spent[model].cost_usd >= own:
            return f"budget_usd={own:g} of {model} is used up ({_dollars(self.spent[model].cost_usd)})"
        return None

    @contextlib.asynccontextmanager
    async def reserve(self, model: str, first_cost: float, first_tokens: int) -> AsyncIterator[None]:
        """Hold the share of one call while the block runs, first waiting until it is free.

        first_cost, first_tokens: the share assumed until an answer of this model has been paid for.
        """
        async with self._settled:
            await self._settled.wait_for(lambda: self.exhausted(model) or self._fits(model, first_cost, first_tokens))
            share = self._share(model, first_cost, first_tokens)
            self._add(self._reserved[model], share, 1)
        try:
            yield
        finally:
            self._add(self._reserved[model], share, -1)
            async with self._settled:
                self._settled.notify_all()

    def charge(self, model: str, cost_usd: float, tokens: int) -> None:
        """Note what an answer, wanted or not, has cost."""
        self._add(self.spent[model], Spent(cost_usd, tokens, 1), 1)

    def _fits(self, model: str, first_cost: float, first_tokens: int) -> bool:
        share = self._share(model, first_cost, first_tokens)
        spent, reserved = self._sum(self.spent), self._sum(self._reserved)
        limits = self._config
        own = self._per_model.get(model, 0.0)
        mine, held = self.spent[model], self._reserved[model]
        return (
            (not limits.tokens or not reserved.calls or spent.tokens + reserved.tokens + share.tokens <= limits.tokens)
            and (
                not limits.cost_usd
                or not reserved.calls
                or spent.cost_usd + reserved.cost_usd + share.cost_usd <= limits.cost_usd
            )
            and (not own or not held.calls or mine.cost_usd + held.cost_usd + share.cost_usd <= own)
        )

    def _share(self, model: str, first_cost: float, first_tokens: int) -> Spent:
        spent = self.spent[model]
        if not spent.calls:
            return Spent(first_cost, first_tokens, 1)
        return Spent(spent.cost_usd / spent.calls, spent.tokens // spent.calls, 1)

    @staticmethod
    def _sum(parts: Mapping[str, Spent]) -> Spent:
        total = Spent()
        for part in parts.values():
            Budget._add(total, part, 1)
        return total

    @staticmethod
    def _add(total: Spent, part: Spent, sign: int) -> None:
        total.cost_usd += sign * part.cost_usd
        total.tokens += sign * part.tokens
        total.calls += sign * part.calls


def _dollars(cost: float) -> str:
    return f"${cost:.2f}" if cost >= 0.1 else f"${cost:.2g}"
