"""Which waiting candidate a free node judges next.

Nodes keep the reference's answers of the problem that they judged last, so a node prefers more of the same problem, and nodes
spread over different problems. Two rules keep that from starving anybody: among equals the model that was served least goes
first, and a candidate that has been passed over ``patience`` times goes before everything else.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What is queued. avoid: nodes that already failed on it; honoured while any other node serves."""

    @property
    def problem(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def avoid(self) -> set[str]: ...


T = TypeVar("T", bound=Waiting)


@dataclass
class _Entry(Generic[T]):
    item: T
    takes: int  # how many candidates had been handed out when this one came
    ticket: int


@dataclass
class _Seeker(Generic[T]):
    node: str
    found: asyncio.Future[T] = field(repr=False)


class Dispatch(Generic[T]):
    """The queue between builds and nodes. Its length is bounded by whoever puts: see ``driver.Lag``."""

    def __init__(self, patience: int = 64) -> None:
        self._patience = patience
        self._tickets = itertools.count()
        self._entries: dict[int, _Entry[T]] = {}  # in order of arrival
        self._by_problem: dict[str, dict[int, _Entry[T]]] = {}
        self._seekers: list[_Seeker[T]] = []
        self._problem_of: dict[str, str] = {}  # node -> the problem it judged last
        self._served: Counter[str] = Counter()  # by model
        self._takes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, node: str) -> None:
        """A node begins to serve."""
        self._problem_of.setdefault(node, "")

    def leave(self, node: str) -> None:
        """A node no longer serves; candidates that avoided all others may now go to those that remain."""
        self._problem_of.pop(node, None)
        self._match()

    def put(self, item: T) -> None:
        """Add a candidate; a node that waits for one gets it at once."""
        entry = _Entry(item, self._takes, next(self._tickets))
        self._entries[entry.ticket] = entry
        self._by_problem.setdefault(item.problem, {})[entry.ticket] = entry
        self._match()

    async def take(self, node: str) -> T:
        """The next candidate for this node; waits for one. Cancelling loses nothing."""
        found = self._choose(node)
        if found is not None:
            return self._hand_out(found, node)
        seeker: _Seeker[T] = _Seeker(node, asyncio.get_running_loop().create_future())
        self._seekers.append(seeker)
        try:
            return await seeker.found
        except asyncio.CancelledError:
            if seeker.found.done() and not seeker.found.cancelled():
                self.put(seeker.found.result())
            raise
        finally:
            if seeker in self._seekers:
                self._seekers.remove(seeker)

    def _match(self) -> None:
        for seeker in list(self._seekers):
            if not seeker.found.done() and (found := self._choose(seeker.node)) is not None:
                self._seekers.remove(seeker)
                seeker.found.set_result(self._hand_out(found, seeker.node))

    def _allowed(self, entry: _Entry[T], node: str) -> bool:
        avoid = entry.item.avoid
        return node not in avoid or not (self._problem_of.keys() - avoid)

    def _choose(self, node: str) -> _Entry[T] | None:
        oldest = next((e for e in self._entries.values() if self._allowed(e, node)), None)
        if oldest is None or self._takes - oldest.takes >= self._patience:
            return oldest
        same = self._by_problem.get(self._problem_of.get(node, ""), {})
        if (found := self._fairest(same, node)) is not None:
            return found
        elsewhere = {problem for other, problem in self._problem_of.items() if other != node}
        free = next((e for e in self._entries.values() if e.item.problem not in elsewhere and self._allowed(e, node)), oldest)
        return self._fairest(self._by_problem[free.item.problem], node)

    def _fairest(self, entries: dict[int, _Entry[T]], node: str) -> _Entry[T] | None:
        allowed = (e for e in entries.values() if self._allowed(e, node))
        return min(allowed, key=lambda e: (self._served[e.item.model], e.ticket), default=None)

    def _hand_out(self, entry: _Entry[T], node: str) -> T:
        problem = entry.item.problem
        del self._entries[entry.ticket]
        del self._by_problem[problem][entry.ticket]
        if not self._by_problem[problem]:
            del self._by_problem[problem]
        self._takes += 1
        self._served[entry.item.model] += 1
        if node in self._problem_of:
            self._problem_of[node] = problem
        return entry.item
