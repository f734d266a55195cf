"""085: a sort must survive empty ranks, duplicates and skew; 081 to 087: edge trials beyond the first five."""

import pytest
import torch

from tests.problems.statements.s085_distributed_sample_sort import statement
from tests.problems.test_problems import assert_close, statement_of

NAME = "085_distributed_sample_sort"
SHARDS = {
    "all empty": [[], [], [], []],
    "one value in all": [[], [], [3.0], []],
    "fewer values than ranks": [[2.0], [], [1.0], []],
    "everything on the last rank": [[], [], [], [float(x % 7) for x in range(23)]],
    "all equal": [[1.0] * 5, [1.0], [], [1.0] * 9],
    "two values": [[0.0, 1.0] * 7, [1.0] * 3, [0.0] * 11, [1.0, 0.0]],
    "reversed ranks": [[float(100 - 10 * r - i) for i in range(8)] for r in range(4)],
    "already sorted": [[float(10 * r + i) for i in range(8 - r)] for r in range(4)],
    "one long shard": [[float((37 * i) % 101) for i in range(101)], [50.0], [0.0, 100.0], [-1.0]],
}


@pytest.mark.parametrize("case", SHARDS)
def test_sort_of_awkward_shards(case, pools):
    given = [[torch.tensor(shard, dtype=torch.float32)] for shard in SHARDS[case]]
    for r, want in zip(pools.solve(4, NAME, given=given), statement(given), strict=True):
        assert torch.equal(r.output, want)


@pytest.mark.parametrize("trial", [9, 14, 19])
@pytest.mark.parametrize(
    "name",
    [
        "081_sam3_allgather_iou_suppression",
        "083_vocab_parallel_log_prob_topk_chunked",
        NAME,
        "087_conv2d_boundary_exchange",
    ],
)
def test_later_edge_trials_agree_with_the_statement(name, trial, pools):
    ranks = pools.solve(4, name, trial=trial, dtype="float32")
    for r, want in zip(ranks, statement_of(name)([x.inputs for x in ranks]), strict=True):
        assert_close(r.output, want, 1e-5, f"trial {trial}: output")
