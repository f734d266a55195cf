"""What 051 does when it has to derive its groups."""

import pytest
import torch

from pkb.inputs.routing import linear
from tests.problems.ranks import inputs_of

NAME = "051_moe_ep_narrow"


def test_experts_that_do_not_divide_the_world_are_refused(pools):
    given = [inputs_of(NAME, rank, 4) for rank in range(4)]
    for inputs in given:
        inputs[1], inputs[2], inputs[6], inputs[8] = inputs[1][:3], inputs[2][:3], 3, None
    with pytest.raises(AssertionError, match="ValueError: 3 experts do not divide 4 ranks"):
        pools.solve(4, NAME, given=given)


def test_derived_groups_are_contiguous_blocks_of_as_many_ranks_as_experts(pools):
    given = [inputs_of(NAME, rank, 4) for rank in range(4)]
    for inputs in given:
        inputs[1], inputs[2], inputs[6], inputs[7], inputs[8] = inputs[1][:2], inputs[2][:2], 2, 1, None
    derived = pools.solve(4, NAME, given=given)
    others = [[*inputs[:8], None] for inputs in given]
    for inputs in others[2:]:  # change the second group's expert; the first group must not notice
        inputs[5] = linear_like(inputs[5])
    changed = pools.solve(4, NAME, given=others)
    same = [torch.equal(a.output, b.output) for a, b in zip(derived, changed, strict=True)]
    assert same == [True, True, False, False]


def linear_like(layer):
    from pkb.draw import Draw

    return linear(Draw(b"another", b"expert", "plain", "float32", "cpu"), layer.in_features, layer.out_features)
