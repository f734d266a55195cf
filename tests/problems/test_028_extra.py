"""Problem 028: inconsistent splits are refused before anything is sent."""

import pytest

from tests.problems.ranks import inputs_of

NAME = "028_moe_pre_all2all"


def test_splits_that_contradict_the_mask_raise(pools):
    given = [inputs_of(NAME, rank, 2) for rank in range(2)]
    for inputs in given:
        inputs[3][0] += 1
    with pytest.raises(AssertionError, match=r"but .* rows are routed"):
        pools.solve(2, NAME, given=given)
