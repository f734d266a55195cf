"""Problem 020 with values in the requested dtype, as the original passes them."""

import pytest
import torch

from tests.problems.statements.s020_blocked_fp8_dequantize import statement

NAME = "020_blocked_fp8_dequantize"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_and_scales_in_the_requested_dtype_are_decoded_alike(dtype, pools):
    ranks = pools.solve(2, NAME, trial=3, dtype=dtype, dims={"fp8": 0})
    assert ranks[0].inputs[0].dtype == ranks[0].inputs[1].dtype == getattr(torch, dtype)
    for r, want in zip(ranks, statement([r.inputs for r in ranks]), strict=True):
        assert r.output.dtype == torch.float32 and torch.equal(r.output, want)


def test_a_block_that_spans_two_slices_is_refused(pools):
    given = [[torch.ones(2, 1, 24), torch.ones(2, 1), 16] for _ in range(2)]
    with pytest.raises(AssertionError, match="block_size must divide"):
        pools.solve(2, NAME, given=given)
