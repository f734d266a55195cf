"""How far generation may run ahead of evaluation."""

from __future__ import annotations

import asyncio
import math
from collections import Counter


class Lag:
    """Admits attempts so that what is outstanding (being generated, or generated and not yet judged) stays bounded.

    At most ``in_flight`` generations run at once, and at most ``in_flight + lag`` attempts are outstanding: once ``lag``
    answers wait for a node, every one more that waits is one fewer in flight, until the two sides run at the same rate. A model
    gets at most its equal share of the generations in flight, so that a slow one cannot hold all places.
    """

    def __init__(self, in_flight: int, lag: int) -> None:
        self._in_flight_limit, self._limit = in_flight, in_flight + lag
        self._by_model: Counter[str] = Counter()
        self._models: set[str] = set()
        self._changed = asyncio.Condition()
        self.in_flight = 0
        self.waiting = 0

    def open(self, model: str) -> None:
        """This model takes part."""
        self._models.add(model)

    async def close(self, model: str) -> None:
        """This model starts nothing any more; its share goes to the others."""
        self._models.discard(model)
        await self._notify()

    async def start(self, model: str) -> None:
        """Wait until one more generation of this model may start."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_start(model))
            self._by_model[model] += 1
            self.in_flight += 1

    async def adopt(self) -> None:
        """Wait until one more answer from an earlier session may join those that wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_flight + self.waiting < self._limit)
            self.waiting += 1

    def give_back(self, model: str) -> None:
        """What was admitted last does not start after all."""
        self._by_model[model] -= 1
        self.in_flight -= 1

    def again(self, model: str) -> None:
        """A judged attempt goes back to its model for another turn; it keeps its place."""
        self.waiting -= 1
        self._by_model[model] += 1
        self.in_flight += 1

    async def generated(self, model: str) -> None:
        """A generation ended; its attempt now waits for judgement."""
        self._by_model[model] -= 1
        self.in_flight -= 1
        self.waiting += 1
        await self._notify()

    async def judged(self) -> None:
        """A waiting attempt is done with."""
        self.waiting -= 1
        await self._notify()

    def _may_start(self, model: str) -> bool:
        share = math.ceil(self._in_flight_limit / max(1, len(self._models)))
        return (
            self.in_flight < self._in_flight_limit
            and self.in_flight + self.waiting < self._limit
            and self._by_model[model] < share
        )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
