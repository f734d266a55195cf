"""Builders and nodes of a fleet whose cluster is a stand-in."""

import asyncio

import pytest

from pkb.config import Config
from pkb.errors import HarnessError
from pkb.sweep import fleet
from pkb.sweep.backend import NodeLost
from pkb.sweep.placement import Machine


class OneMachine:
    """A cluster of one machine. Builders are numbered in the order they come; the first is dead before anybody has noticed."""

    def __init__(self):
        self.started, self.calls = 0, []
        self.noticed = asyncio.Event()

    async def connect(self):
        pass

    async def disconnect(self):
        pass

    async def machines(self):
        return [Machine("id", "machine", 3.0, 0, local=False)]

    async def start(self, actor, arguments, node_id, cpus, gpus, concurrency):
        if actor.__name__ == "Builder":
            self.started += 1
            return self.started
        return 0

    async def call(self, actor, method, *arguments):
        if method == "ready":
            return "", ""
        if method == "until_death":
            await (self.noticed.wait() if actor == 1 else asyncio.Event().wait())
            raise NodeLost("died")
        if method == "build":
            self.calls.append(actor)
            if actor == 1:
                raise NodeLost("died")
            return {"builder": actor}

    async def kill(self, actor):
        pass

    async def last_words(self, node_id, path):
        return ""


def test_a_dead_builder_gets_no_other_build_before_its_death_is_noticed(monkeypatch):
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.01)

    async def play():
        cluster = OneMachine()
        backend = fleet.Fleet(Config(), cluster)
        await backend.open()
        try:
            with pytest.raises(HarnessError, match="builder machine/builder0: died"):
                await backend.build("source", "cpu")
            again = asyncio.create_task(backend.build("source", "cpu"))
            await asyncio.sleep(0.1)  # the time in which a dead one would be asked hundreds of times
            assert cluster.calls == [1] and not again.done()
            cluster.noticed.set()
            assert await again == {"builder": 2}
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(play(), 30))
