"""Problem 068, whose table is only described until ``solution`` is called, is judged as any other."""

import random
from types import SimpleNamespace

import pytest
import torch

from pkb import config, table
from pkb.evaluate import session
from pkb.evaluate.seat import Seat
from pkb.table import Table
from pkb.verdict import Verdict
from tests.evaluate import over_symm

TABLES = 68
PATIENT = ("evaluation.trials=5", "evaluation.limits.call_seconds=30")
RETURN = "    return rows @ proj_matrix"


@pytest.fixture(scope="module")
def honest():
    source = over_symm.candidate(TABLES)
    assert source.count(RETURN) == 1
    return source


def test_an_honest_candidate_is_correct_and_timed(node, honest):
    timed = ("evaluation.timing.enabled=true", "evaluation.timing.blocks=3", "evaluation.timing.warmup=20")
    found = node.judge(honest, TABLES, *PATIENT, *timed)
    assert found.verdict is Verdict.CORRECT, found.detail
    assert found.speedup > 0 and found.collective_bytes <= 4096


def test_the_reference_is_right_as_its_own_candidate(node, reference):
    found = node.judge(reference(TABLES), TABLES, *PATIENT, "integrity.collectives=any", dtype="float32")
    assert found.verdict is Verdict.CORRECT, found.detail


@pytest.mark.parametrize(
    "change",
    [
        "local_embedding_shard[7] = 0",
        "local_embedding_shard[-1] += 1",
        "local_embedding_shard[[0, 1]] = local_embedding_shard[[1, 0]]",
    ],
    ids=["a row", "the last row", "two rows that change places"],
)
def test_who_writes_into_the_table_has_changed_an_input(node, honest, change):
    found = node.judge(honest.replace(RETURN, f"    {change}\n{RETURN}"), TABLES, *PATIENT)
    assert found.verdict is Verdict.MISMATCH
    assert "input 'local_embedding_shard' was changed" in found.detail


def test_a_table_that_is_only_changed_in_later_calls_is_found_in_the_bursts(node, honest):
    change = "    global calls\n    calls += 1\n    if calls > 5:\n        local_embedding_shard[7] = 0\n"
    found = node.judge("calls = 0\n" + honest.replace(RETURN, change + RETURN), TABLES, *PATIENT)
    assert found.verdict is Verdict.NONDETERMINISTIC
    assert "input 'local_embedding_shard' was changed" in found.detail


WRONG = {
    "in a row of the last shard": "rows[(input_node_ids >= (world_size - 1) * rows_per_rank).nonzero()[-1:]] *= 1.5",
    "in the last row asked for": "rows[-1:] = 0",
    "by one row": "rows = torch.roll(rows, 1, 0)",
}


@pytest.mark.parametrize("mistake", WRONG.values(), ids=WRONG)
def test_who_is_wrong_in_single_rows_is_wrong(node, honest, mistake):
    found = node.judge(honest.replace(RETURN, f"    {mistake}\n{RETURN}"), TABLES, *PATIENT)
    assert found.verdict is Verdict.MISMATCH, found.detail
    assert "output[" in found.detail


#: What could be known of other shards without asking for their rows: the pattern, and what was fetched in earlier calls.
PATTERN = """
def solution(local_embedding_shard, input_node_ids, proj_matrix, num_total_nodes, group=None):
    c = (num_total_nodes + dist.get_world_size(group) - 1) // dist.get_world_size(group)
    normal = torch.randn(4096, local_embedding_shard.shape[1], generator=torch.Generator().manual_seed(0))
    pattern = ((normal * 8).round().clamp(-31, 31) / 8).to(local_embedding_shard.dtype)
    first = dist.get_rank(group) * c
    mine = (input_node_ids >= first) & (input_node_ids < first + local_embedding_shard.shape[0])
    rows = pattern[input_node_ids % c % 4096]
    rows[mine] = local_embedding_shard[input_node_ids[mine] - first]
    return rows @ proj_matrix
"""
REMEMBERED = """
right, kept = solution, []
def solution(local_embedding_shard, input_node_ids, proj_matrix, num_total_nodes, group=None):
    if not kept:
        kept.append(local_embedding_shard.clone())
    shard = kept[0] if kept[0].shape == local_embedding_shard.shape else local_embedding_shard
    return right(shard, input_node_ids, proj_matrix, num_total_nodes, group)
"""


@pytest.mark.parametrize("add", [PATTERN, REMEMBERED], ids=["the pattern", "an earlier table"])
def test_what_is_known_of_the_table_beforehand_is_no_answer(node, honest, add):
    found = node.judge(honest + add, TABLES, *PATIENT, "evaluation.trials=6")
    assert found.verdict is Verdict.MISMATCH, found.detail


# -- how much of a burst is in memory at once --------------------------------------------------------------------------


def judging(set_bytes, trials=5):
    return SimpleNamespace(config=config.load([f"evaluation.trials={trials}"]), set_bytes=set_bytes)


@pytest.mark.parametrize("set_bytes, most", [(1 << 10, 5), (1 << 30, 4), (1_240_000_000, 3), (3 << 30, 2), (100 << 30, 2)])
def test_sets_of_a_burst_are_as_many_as_fit_but_never_one_alone(set_bytes, most):
    """With one set nothing differs from call to call, and no race shows."""
    seen = {tuple(session.Session._burst_trials(judging(set_bytes), random.Random(seed))) for seed in range(60)}
    assert {len(trials) for trials in seen} == {most}
    assert all(list(trials) == sorted(set(trials)) and set(trials) <= set(range(5)) for trials in seen)
    assert set().union(*seen) == set(range(5)), "which of them is drawn"


def test_one_trial_is_all_that_one_trial_has():
    assert session.Session._burst_trials(judging(100 << 30, trials=1), random.Random(0)) == [0]


@pytest.mark.parametrize("set_bytes, calls", [(1 << 10, 15), (1 << 27, 8), (1 << 30, 3), (100 << 30, 3)])
def test_calls_of_a_burst_are_as_many_as_fit_but_every_set_comes_once(set_bytes, calls):
    assert session.Session._burst_calls(judging(set_bytes), 3, 15) == calls


def test_what_a_large_table_took_is_given_back_before_anything_else_can_move_into_it(monkeypatch):
    """An allocator's block of 28 GB of which a list of rows has become part is kept whole, and the next table needs another."""
    seat = Seat(0, 2, "cpu", None)
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(True))
    small = Table(8, torch.tensor([1]), torch.ones(1, 4))
    seat.ready([small, 3])
    seat.device = "cuda:0"
    seat.give_back_tables()
    assert not given, "small ones stay for reuse"
    monkeypatch.setattr(table, "LARGE", small.nbytes)
    seat.device = "cpu"
    seat.ready_together([[small], [small]])
    seat.device = "cuda:0"
    seat.give_back_tables()
    assert given == [True]
    seat.give_back_tables()
    assert given == [True], "once"
