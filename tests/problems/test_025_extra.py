"""Problem 025: log-ratios beyond the upper clamp, apart because exp(20) swamps every sum."""

import torch

from tests.problems.ranks import inputs_of
from tests.problems.statements.s025_importance_sampling_loss import statement

NAME = "025_importance_sampling_loss"


def test_log_ratios_are_clamped_at_plus_20(pools):
    given = [inputs_of(NAME, rank, 2) for rank in range(2)]
    given[1][3][-1] -= 50.0  # the last label is never ignored
    for r, want in zip(pools.solve(2, NAME, given=given), statement(given), strict=True):
        assert r.output[4][2].item() == torch.tensor(20.0).exp().item()
        torch.testing.assert_close(r.output[4], want[4].float(), rtol=1e-5, atol=0)
        torch.testing.assert_close(r.output[0], want[0].float(), rtol=1e-5, atol=0)
