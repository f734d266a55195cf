"""The driver's hold on the process that talks to Ray."""

import asyncio

import pytest

from pkb.config import Config
from pkb.errors import HarnessError
from pkb.sweep.ray_backend import RayBackend


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_process_that_dies_while_it_starts_is_started_once_more(tmp_path, monkeypatch, failures):
    notices, starts = [], []

    async def start(self):
        starts.append(self)
        if len(starts) <= failures:
            raise HarnessError("the process that talks to Ray ended with -9")
        return asyncio.StreamReader()

    async def play():
        backend = RayBackend(Config(), tmp_path / "ray.log", notices.append)
        await backend.open()
        await backend.close()

    monkeypatch.setattr(RayBackend, "_start", start)
    if failures == 2:
        with pytest.raises(HarnessError, match="ended with -9"):
            asyncio.run(play())
    else:
        asyncio.run(play())
    assert len(starts) == min(2, failures + 1) and len(notices) == min(1, failures)
