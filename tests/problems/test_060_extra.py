"""What 060's contract refuses."""

import pytest
import torch


def test_size_that_does_not_fit_is_refused_before_any_exchange(pools):
    x = torch.zeros(1, 1, 3, 5, dtype=torch.complex64)
    for s in ((8, 8), None):
        with pytest.raises(AssertionError, match=r"ValueError: s\[0\] = \d, but 2 ranks hold 3 rows each"):
            pools.solve(2, "060_physicsnemo_distributed_irfft", given=[[x, s, (-2, -1), "ortho", None]] * 2)
