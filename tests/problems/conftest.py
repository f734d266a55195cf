"""Two pools of gloo ranks, started once."""

import pytest

from tests.problems.ranks import RankPool


@pytest.fixture(scope="session")
def pools():
    """RankPool by world size (2 and 4), forked on first use; a pool that failed is replaced."""

    class Pools(dict):
        def __missing__(self, world_size):
            self[world_size] = RankPool(world_size)
            return self[world_size]

        def solve(self, world_size, *args, **kwargs):
            try:
                return self[world_size].solve(*args, **kwargs)
            except AssertionError:
                self.pop(world_size).close()
                raise

    pools = Pools()
    yield pools
    for pool in pools.values():
        pool.close()
