"""What the driver needs of whoever builds and judges candidates: Ray actors in a sweep, stubs in tests and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

from pkb.errors import HarnessError
from pkb.records import AttemptKey, Evaluation, Generation, Job

if TYPE_CHECKING:
    from pkb.evaluate.build import Build


class NodeLost(HarnessError):
    """The node, or the process that owns it, is gone or no longer answers; what it was doing must be done elsewhere.

    log: the last words of the lost process, as far as they are known.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class ClusterLost(NodeLost):
    """Every node is gone at once, with the head of the cluster or the connection to it: nothing points at any one attempt."""


class Node(Protocol):
    """One place that judges one candidate at a time: a whole machine, or one group of its GPUs."""

    @property
    def name(self) -> str:
        """Names the place; a node that comes back after a failure has the name it had."""

    @property
    def lost(self) -> asyncio.Future[str]:
        """Done, with the reason, once the node is gone."""

    async def evaluate(self, job: Job, build: Build | None) -> Evaluation:
        """Judge a candidate. Raises HarnessError when the machine failed, NodeLost when the node is no longer usable."""

    async def health(self) -> str | None:
        """None when a known-good candidate is still judged as it should be, else one line that says what is wrong."""


class Backend(Protocol):
    """All nodes, and the builders."""

    def nodes(self) -> AsyncIterator[Node]:
        """Every node as it becomes ready: at the start, later when one joins, again when a lost one has been replaced."""

    async def build(self, source: str, device: str) -> Build:
        """Compile a candidate's extensions; raises HarnessError when no builder could."""

    async def close(self) -> None:
        """Stop everything that this backend started."""


class Generator(Protocol):
    """Whoever answers prompts."""

    async def generate(self, model: Any, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        """One answer, or a Generation whose status says why there is none; never raises for a provider's fault.

        tries is 0 when nobody was asked; such an outcome is not stored.
        """

    def unavailable(self, name: str) -> str | None:
        """Why this model is not asked any more in this session; None while it is."""

    def forget(self, generation: Generation) -> None:
        """The row of this answer is durable; what was kept against a kill is not needed any more."""
