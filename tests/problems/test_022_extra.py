"""Problem 022: what becomes of both lists."""

import pytest
import torch

NAME = "022_clip_grad_norm_ep"


@pytest.mark.parametrize("trial", range(4))
def test_gradients_end_with_the_threshold_as_their_global_norm(trial, pools):
    ranks = pools.solve(4, NAME, trial=trial, dtype="float32")
    max_norm, p = ranks[0].inputs[2:4]
    everything = torch.cat([g.double().flatten() for r in ranks for g in r.after[0] + r.after[1] if g is not None])
    assert everything.abs().pow(p).sum().pow(1 / p).item() == pytest.approx(max_norm, rel=1e-5)


def test_experts_are_scaled_even_where_nothing_is_clipped(pools):
    for r in pools.solve(4, NAME, trial=4, dtype="bfloat16"):
        dense, experts, max_norm, _, ep_size, *_ = r.inputs
        assert r.output.item() == max_norm == 5.0 and ep_size == 2
        assert all(torch.equal(a, b) for a, b in zip(dense, r.after[0], strict=True))
        assert all(torch.equal(a / ep_size, b) for a, b in zip(experts, r.after[1], strict=True))
