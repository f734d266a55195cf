"""Problem 021: what becomes of the gradients, and the corners of the contract."""

import pytest
import torch

from pkb.problem import GroupRef

NAME = "021_clip_grad_norm_no_ep"


@pytest.mark.parametrize("trial", range(4))
def test_gradients_end_with_the_threshold_as_their_global_norm(trial, pools):
    ranks = pools.solve(2, NAME, trial=trial, dtype="float32")
    _, max_norm, p, _ = ranks[0].inputs
    everything = torch.cat([g.double().flatten() for r in ranks for g in r.after[0] if g is not None])
    assert everything.abs().pow(p).sum().pow(1 / p).item() == pytest.approx(max_norm, rel=1e-5)


def test_a_norm_equal_to_the_threshold_changes_nothing(pools):
    for r in pools.solve(4, NAME, trial=4, dtype="bfloat16"):
        assert r.output.item() == r.inputs[1] == 5.0
        assert all(torch.equal(a, b) for a, b in zip(r.inputs[0], r.after[0], strict=True))


def test_no_group_means_no_reduction_and_no_gradient_a_norm_of_zero(pools):
    local = pools.solve(2, NAME, given=[[[torch.full((4,), 1.0 + rank)], 1.0, 2.0, None] for rank in range(2)])
    assert [r.output.item() for r in local] == [2.0, 4.0]
    none = pools.solve(2, NAME, given=[[[None, None], 1.0, 2.0, GroupRef((0, 1))] for _ in range(2)])
    assert all(r.output.item() == 0.0 and r.output.dtype == torch.float32 for r in none)
