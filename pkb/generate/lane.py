"""The state of one model within a run: its limits, its outages, and whether it is still asked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

from pkb.config import GenerationConfig
from pkb.generate import library
from pkb.generate.failures import Failure, Kind
from pkb.generate.limits import Breaker, Bucket
from pkb.generate.models import Model
from pkb.generate.prices import prices_of

#: The first call of a session goes ahead of the others by at most this (seconds): a bad key, an unknown model or a wrong parameter
#: is known by then, and costs one request instead of all places' worth.
FIRST_ALONE = 1.0
#: A provider that asks for a longer wait than this (seconds) is asked again in another session.
LONGEST_WAIT = 3600.0


class Lane:
    """One model's lane. stopped: why it is not asked any more in this session, or None. carried: see ``library.carries``."""

    def __init__(self, model: Model, config: GenerationConfig) -> None:
        self.model = model
        self.prices = prices_of(model)
        self.carried = library.carries(model)
        self.breaker = Breaker(config.outage_failures, config.outage_seconds, config.outage_pauses)
        self._stopped: str | None = None
        self._rejected = 0
        self._most_rejected = config.outage_failures
        self._free_at = 0.0  # time.monotonic() until which the provider wants quiet
        self._proven = False  # a call was not rejected, or has lived for FIRST_ALONE
        self._ahead_goes = False
        self._ahead_number = 0
        self._places = asyncio.Semaphore(model.max_parallel) if model.max_parallel else contextlib.nullcontext()
        # Requests are spaced, with at most a second's worth at once: a minute's worth would break limits that are checked in
        # shorter windows.
        self._requests = Bucket(model.rpm, burst=max(1.0, model.rpm / 60))
        self._tokens = Bucket(model.tpm, burst=float(model.tpm))

    @property
    def stopped(self) -> str | None:
        if self._stopped is None and self.breaker.exhausted:
            return f"the provider is out of service ({self.breaker.pauses} pauses in a row)"
        return self._stopped

    @contextlib.asynccontextmanager
    async def place(self, tokens: float) -> AsyncIterator[int]:
        """Wait until a call of about this many tokens may start; the block is the call. Gives the breaker's epoch."""
        async with self._places:
            await self._requests.take()
            await self._tokens.take(tokens)
            while self.stopped is None and (wait := self._free_at - time.monotonic()) > 0:
                await asyncio.sleep(wait + random.random())  # not all in the same instant
            await self._ahead()
            epoch = await self.breaker.admit()
            try:
                yield epoch
            except asyncio.CancelledError:
                self.breaker.forgo(epoch)
                raise
            finally:
                if self._rejected:
                    self._ahead_goes = False  # the next one goes alone too
                else:
                    self._proven = True

    async def _ahead(self) -> None:
        """Return at once to the call that goes ahead, to the others when it is known that calls can work."""
        ahead, waited = self._ahead_number, 0
        while not self._proven:
            if not self._ahead_goes:
                self._ahead_goes = True
                self._ahead_number += 1
                return
            # In steps: litellm's imports, on the first call, hold the event loop for seconds.
            await asyncio.sleep(FIRST_ALONE / 10)
            ahead, waited = self._ahead_number, waited + 1 if ahead == self._ahead_number else 0
            self._proven = self._proven or waited >= 10

    def settle(self, foreseen: float, tokens: float) -> None:
        """A call has used this many tokens."""
        self._tokens.settle(tokens - foreseen)

    def success(self, epoch: int) -> None:
        """The provider answered."""
        self._rejected = 0
        self.breaker.success(epoch)

    def failure(self, epoch: int, failure: Failure) -> None:
        """The provider did not: draw what follows for the calls to come."""
        if failure.kind.outage:
            self.breaker.failure(epoch)
            return
        self.breaker.success(epoch)  # it is in service: it said no
        wait = failure.retry_after or 0.0
        if failure.kind is Kind.ACCESS:
            self._stopped = self._stopped or str(failure)
        elif failure.kind is Kind.RATE_LIMIT and wait > LONGEST_WAIT:
            self._stopped = self._stopped or f"the provider asks to wait {wait / 3600:.1f} h ({failure.message})"
        elif failure.kind is Kind.RATE_LIMIT:
            self._free_at = max(self._free_at, time.monotonic() + wait)
        elif failure.kind is Kind.REQUEST:
            self._rejected += 1
            if self._rejected >= self._most_rejected:
                self._stopped = f"the provider rejects every request: {failure}"
