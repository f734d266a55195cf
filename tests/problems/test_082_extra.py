"""082 to 084: inputs whose cuts rounding cannot move, and sizes that the contract refuses."""

import pytest
import torch

from tests.problems.ranks import inputs_of
from tests.problems.statements.filtered import kept, rows

LOG_PROB, CHUNKED, BACKWARD = (
    "082_vocab_parallel_log_prob_topk",
    "083_vocab_parallel_log_prob_topk_chunked",
    "084_vocab_parallel_log_prob_topk_chunked_backward",
)


@pytest.mark.parametrize("trial", [0, 2, 4, 9])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_running_sum_lies_near_the_cut(trial, dtype):
    ranks = [inputs_of(LOG_PROB, rank, 4, trial=trial, dtype=dtype) for rank in range(4)]
    logits, _ = rows(ranks)
    top_k, top_p = ranks[0][3:5]
    for x in logits:
        ascending = torch.where(kept(x, top_k, None), x, -torch.inf).softmax(0).sort().values
        assert (ascending.cumsum(0) - (1 - top_p)).abs().min() > 0.01


def test_targets_lie_inside_and_outside_the_filters():
    ranks = [inputs_of(CHUNKED, rank, 2, trial=1) for rank in range(2)]
    logits, target = rows(ranks)
    inside = torch.tensor([bool(kept(x, *ranks[0][3:5])[t]) for x, t in zip(logits, target, strict=True)])
    assert inside.any() and not inside.all()


@pytest.mark.parametrize("name, at, value", [(LOG_PROB, None, None), (CHUNKED, 5, 1), (BACKWARD, 6, 3)])
def test_tokens_that_do_not_divide_are_refused(name, at, value, pools):
    given = [inputs_of(name, rank, 4) for rank in range(4)]
    for inputs in given:
        if at is None:
            inputs[0], inputs[1] = inputs[0][:, :5], inputs[1][:, :5]
        else:
            inputs[at] = value
    with pytest.raises(AssertionError, match=r"ValueError: .* tokens do not divide over 4 ranks"):
        pools.solve(4, name, given=given)
