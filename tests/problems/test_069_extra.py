"""069: on the grid of scores no implementation's sigmoid can round another way, so ranks can be compared exactly."""

import pytest
import torch

from tests.problems.ranks import inputs_of

NAME = "069_gnn_negative_scoring"


@pytest.mark.parametrize("dtype, bits", [("bfloat16", 8), ("float32", 24)])
def test_sigmoids_keep_clear_of_rounding(dtype, bits):
    scores = torch.cat([x.flatten() for trial in range(5) for x in inputs_of(NAME, 0, 2, trial=trial, dtype=dtype)])
    sigmoid = scores.double().unique().sigmoid()
    sigmoid = sigmoid[(sigmoid > 1e-6) & (sigmoid < 1 - 1e-6) & (sigmoid != 0.5)]
    ulp = torch.exp2((torch.frexp(sigmoid).exponent - bits).double())
    if dtype == "float32":  # distinct sigmoids lie farther apart than any implementation errs
        assert ((sigmoid[1:] - sigmoid[:-1]) / ulp[1:]).min() > 8
    else:  # no sigmoid lies within float32's error of the middle between two bfloat16 numbers
        to_middle = ((sigmoid / ulp) % 1 - 0.5).abs() * ulp / sigmoid
        assert to_middle.min() > 16 * 2.0**-24


def test_ties_count_in_favour_of_the_positive(pools):
    positives = [torch.tensor([0.5, 1.0]), torch.tensor([0.0])]
    negatives = [torch.tensor([[0.5, 0.5, 1.0], [2.0, 2.0, 3.0]]), torch.tensor([[0.0, -1.0, 0.0]])]
    ranks = pools.solve(2, NAME, given=[[p, n] for p, n in zip(positives, negatives, strict=True)])
    assert [r.output.tolist() for r in ranks] == [[2, 4, 1], [2, 4, 1]]
