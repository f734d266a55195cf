"""Buckets, breakers and back-off, on a clock of the test's own."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb.generate.limits import Breaker, Bucket, backoff


class Clock:
    """Time that passes only while something sleeps; ``sleep`` replaces asyncio's."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self._real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def __call__(self):
        return self.now

    async def sleep(self, seconds=0):
        self.now += seconds
        await self._real(0)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def take(bucket, clock, units):
    """When each of these takes was granted."""

    async def main():
        times = []
        for u in units:
            await bucket.take(u)
            times.append(clock.now - 100.0)
        return times

    return asyncio.run(main())


def test_requests_are_spaced_evenly(clock):
    assert take(Bucket(5, clock=clock), clock, [1] * 4) == pytest.approx([0, 12, 24, 36])


def test_a_burst_is_what_it_says(clock):
    assert take(Bucket(60, burst=3, clock=clock), clock, [1] * 5) == pytest.approx([0, 0, 0, 1, 2])


def test_no_limit(clock):
    assert take(Bucket(0, clock=clock), clock, [1] * 100)[-1] == 0


def test_more_than_a_burst_becomes_debt_of_those_who_follow(clock):
    assert take(Bucket(600, burst=600, clock=clock), clock, [900, 100]) == pytest.approx([0, 40])


def test_settling_corrects_the_forecast(clock):
    bucket = Bucket(600, burst=600, clock=clock)
    take(bucket, clock, [600])
    bucket.settle(-500)
    assert take(bucket, clock, [500]) == pytest.approx([0])
    bucket.settle(60)
    assert take(bucket, clock, [1])[0] == pytest.approx(6.1)


@given(st.lists(st.floats(1, 50), min_size=1, max_size=40))
def test_no_minute_ever_holds_more_than_the_rate_and_one_burst(units):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        times = take(Bucket(120, burst=50, clock=clock), clock, units)
    for i, start in enumerate(times):
        inside = sum(u for t, u in zip(times[i:], units[i:], strict=True) if t < start + 60)
        assert inside <= 120 + 50 + 1e-6


def test_breaker_pauses_after_failures_in_a_row_and_one_call_goes_first():
    async def main():
        breaker = Breaker(failures=3, seconds=0.2, pauses=3)
        epoch = await breaker.admit()
        for _ in range(2):
            breaker.failure(epoch)
        breaker.success(epoch)
        for _ in range(2):
            breaker.failure(epoch)
        assert not breaker.paused
        breaker.failure(epoch)
        assert breaker.paused
        breaker.failure(epoch)  # a call from before the pause says nothing new
        admitted = []

        async def call(name):
            admitted.append((name, await breaker.admit()))

        calls = [asyncio.create_task(call(i)) for i in range(5)]
        await asyncio.sleep(0.1)
        assert not admitted
        await asyncio.sleep(0.15)
        assert len(admitted) == 1
        breaker.success(admitted[0][1])
        await asyncio.wait_for(asyncio.gather(*calls), 1)
        assert len(admitted) == 5 and breaker.pauses == 0

    asyncio.run(main())


def test_breaker_gives_up_after_pauses_in_a_row():
    async def main():
        breaker = Breaker(failures=1, seconds=0.01, pauses=2)
        for _ in range(3):
            breaker.failure(await breaker.admit())
        assert breaker.exhausted
        await asyncio.wait_for(breaker.admit(), 1)  # nobody waits for ever

    asyncio.run(main())


def test_a_first_call_that_lives_long_lets_the_others_follow():
    async def main():
        breaker = Breaker(failures=1, seconds=0.05, pauses=2)
        breaker.failure(await breaker.admit())
        await breaker.admit()
        await asyncio.wait_for(breaker.admit(), 1)

    asyncio.run(main())


def test_a_first_call_that_is_cancelled_lets_another_go():
    async def main():
        breaker = Breaker(failures=1, seconds=0.05, pauses=2)
        breaker.failure(await breaker.admit())
        epoch = await breaker.admit()
        waiting = asyncio.create_task(breaker.admit())
        await asyncio.sleep(0)
        breaker.forgo(epoch)
        await asyncio.wait_for(waiting, 0.03)

    asyncio.run(main())


def test_backoff_doubles_to_the_cap_with_jitter():
    assert [backoff(n, 2.0, 10.0, None, lambda: 1.0) for n in (1, 2, 3, 4)] == [2, 4, 8, 10]
    assert [backoff(n, 2.0, 10.0, None, lambda: 0.0) for n in (1, 2)] == [1, 2]


def test_backoff_honours_what_was_asked():
    assert backoff(1, 2.0, 10.0, 60.0, lambda: 0.0) == 60.0
    assert backoff(1, 2.0, 10.0, 60.0, lambda: 1.0) == 75.0
    assert backoff(9, 2.0, 10.0, 0.0, lambda: 1.0) == 1.0
