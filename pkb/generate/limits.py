"""What holds calls back: tokens per minute, a provider's wish, an outage."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

Clock = Callable[[], float]


class Bucket:
    """A leaky bucket: ``per_minute`` units, spent evenly, at most ``burst`` of them at once.

    What a call really cost may be settled afterwards; a debt delays the calls that follow. A bucket of 0 limits nothing.
    """

    def __init__(self, per_minute: float, burst: float = 1.0, clock: Clock = time.monotonic) -> None:
        self._rate = per_minute / 60.0
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()
        self._turn = asyncio.Lock()

    async def take(self, units: float = 1.0) -> None:
        """Wait for this many units (at most a burst's worth is waited for, the rest becomes debt); first come, first served."""
        if not self._rate:
            return
        async with self._turn:
            while (missing := min(units, self._burst) - self._filled()) > 1e-9:
                await asyncio.sleep(missing / self._rate)
            self._level -= units

    def settle(self, units: float) -> None:
        """Take units that were not foreseen, or give some back when negative."""
        if self._rate:
            self._level = min(self._burst, self._filled() - units)

    def _filled(self) -> float:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level


class Breaker:
    """Pauses a model after ``failures`` signs of an outage in a row; gives it up after ``pauses`` pauses in a row.

    After a pause one call goes first; the others follow when it has succeeded, or when it has lived as long as a pause without
    failing (answers may take half an hour). Failures of calls that had started before a pause do not count towards the next.
    """

    def __init__(self, failures: int, seconds: float, pauses: int, clock: Clock = time.monotonic) -> None:
        self._limit, self._seconds, self._most_pauses = failures, seconds, pauses
        self._clock = clock
        self._open_until = 0.0
        self._probe_ends: float | None = None  # until when the probe is waited for
        self._changed = asyncio.Event()
        self._failures = 0
        self.epoch = 0
        self.pauses = 0

    @property
    def exhausted(self) -> bool:
        """Whether the model is given up."""
        return self.pauses > self._most_pauses

    @property
    def paused(self) -> bool:
        return self._clock() < self._open_until

    async def admit(self) -> int:
        """Wait until a call may start; the number returned goes back in with the call's outcome."""
        while not self.exhausted:
            now = self._clock()
            if now < self._open_until:
                await self._sleep(self._open_until - now)
            elif self.pauses and self._probe_ends is None:
                self._probe_ends = now + self._seconds
                return self.epoch
            elif self._probe_ends is not None and now < self._probe_ends:
                await self._sleep(self._probe_ends - now)
            else:
                break
        return self.epoch

    def success(self, epoch: int) -> None:
        """A call was answered, in whatever way."""
        self._failures = 0
        if epoch == self.epoch and self.pauses:
            self.pauses = 0
            self._probe_ends = None
            self._wake()

    def failure(self, epoch: int) -> None:
        """A call ended in a sign of an outage."""
        if epoch != self.epoch:
            return
        self._failures += 1
        if self._failures >= self._limit or (self._probe_ends is not None and self._clock() < self._probe_ends):
            self._failures = 0
            self.epoch += 1
            self.pauses += 1
            self._probe_ends = None
            self._open_until = self._clock() + self._seconds
            self._wake()

    def forgo(self, epoch: int) -> None:
        """A call that was admitted never took place (cancelled): another may go first."""
        if epoch == self.epoch and self._probe_ends is not None:
            self._probe_ends = None
            self._wake()

    async def _sleep(self, seconds: float) -> None:
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), seconds)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def backoff(failures: int, first: float, cap: float, asked: float | None, draw: Callable[[], float] = random.random) -> float:
    """Seconds to wait before the next try: what the provider asked for plus up to a quarter more (at least a second's worth,
    so that a crowd does not return at once), else ``first`` doubled with every failure up to ``cap``, of which half is drawn.
    """
    if asked is not None:
        return asked + draw() * max(1.0, asked / 4)
    full = min(cap, first * 2 ** min(failures - 1, 30))
    return full * (0.5 + 0.5 * draw())
