"""Chains of calls: what moves, which input it is, and that it shows in every problem's answers."""

import dataclasses

import pytest
import torch

from pkb import problem as problems
from pkb import tree
from pkb.evaluate import chain, compare
from pkb.evaluate.seat import bit_sum, sum_of
from pkb.problem import TIMING_TRIAL
from pkb.table import Table
from tests.problems.ranks import RankPool, inputs_of

#: Nothing in their inputs is a real number of its own on every rank, in two rows or more.
NOTHING_TO_MOVE = {"023_grad_acc_loss", "026_moe_token_preprocess", "064_gnn_neighbor_sampling", "070_torchrec_kjt_all2all"}
#: A loss over all tokens, in which a few of them do not show.
HARDLY_SHOWS = {"024_load_balancing_loss_fn"}


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("shape", [(2,), (5, 3), (2, 64, 4), (1, 1, 17), (4000,)])
def test_rows_move_by_the_sum_and_the_same_sum_moves_them_alike(shape):
    before = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    seen = set()
    for total in (0, 1, 5, -7, 2**62):
        twins = [before.clone(), before.clone()]
        for x in twins:
            chain.move([3, x], 1, torch.tensor(total))
        assert torch.equal(*twins)
        assert set(twins[0].reshape(-1).tolist()) <= set(before.reshape(-1).tolist()), "values are moved, never made"
        seen.add(tuple(twins[0].reshape(-1).tolist()))
    assert len(seen) > 1


def test_every_eighth_row_moves():
    before = torch.arange(64.0)
    after = before.clone()
    chain.move([after], 0, torch.tensor(3))
    assert (before != after).nonzero().reshape(-1).tolist() == list(range(3, 64, 8))


def test_where_rows_come_from_depends_on_all_bits_of_the_sum():
    before, seen = torch.arange(256.0), set()
    for high in range(32):
        after = before.clone()
        chain.move([after], 0, torch.tensor(5 + (high << 40)))  # a multiple of 256 more: the same rows are overwritten
        assert (before != after).nonzero().reshape(-1).tolist() == list(range(5, 256, 8))
        seen.add(tuple(after.tolist()))
    assert len(seen) == 32


def test_of_two_rows_one_becomes_the_other():
    for total in range(8):
        x = torch.tensor([1.0, 2.0])
        chain.move([x], 0, torch.tensor(total))
        assert x[0] == x[1]


@pytest.mark.parametrize("filling", [0, -1, 1, 3])
def test_every_word_of_an_answer_counts_in_its_sum_by_what_its_counterpart_is(filling):
    x = torch.full((64,), filling, dtype=torch.int64)
    other = torch.randint(-(2**62), 2**62, (64,))
    sums, by = {int(bit_sum(x))}, set()
    for i in range(64):
        changed, twin = x.clone(), other.clone()
        changed[i] += 1
        twin[i] += 1
        sums.add(int(bit_sum(changed)))
        by.add(int(bit_sum(twin) - bit_sum(other)))
    assert len(sums) == 2 and len(by) == 64, "no change of a random answer is worth what another is"


def test_each_call_is_asked_what_the_answer_before_makes_of_its_inputs():
    sets = [torch.arange(32.0) + 100 * i for i in range(3)]
    copies = [x.clone() for x in sets]
    answers = []
    chained = chain.Chain(lambda x: answers.append(x * 2) or answers[-1], 0, [])
    for x in copies:
        chained(x)
    assert torch.equal(copies[0], sets[0]), "nothing comes before the first call"
    for i in (1, 2):
        expected = sets[i].clone()
        chain.move([expected], 0, sum_of(answers[i - 1], [], []))
        assert torch.equal(copies[i], expected) and not torch.equal(copies[i], sets[i])


def test_what_the_problem_changes_belongs_to_the_answer():
    first, second = [torch.arange(16.0)], [torch.arange(16.0)]
    chained = chain.Chain(lambda x: x.add_(1).shape[0], 0, [0])
    chained(*first)
    assert int(chained.total) == int(bit_sum(first[0]))
    chained(*second)
    assert not torch.equal(first[0], second[0])


def test_only_numbers_that_are_every_ranks_own_may_move():
    ours = [(0, 11, 50), (1, 12, 10), (2, 13, 70), (3, 14, 20)]
    theirs = [(0, 11, 50), (1, 22, 10), (3, 24, 20)]
    assert chain.choose([ours, theirs]) == 3, "0 is the same on both, 2 is no rank's but ours, 3 is larger than 1"
    assert chain.choose([ours[:1], theirs[:1]]) is None
    third = [(0, 11, 50), (1, 32, 10), (3, 24, 20)]
    assert chain.choose([ours, theirs, third]) == 1, "3 is the same on two of three"


def test_what_may_move_leaves_out_integers_single_rows_and_what_the_problem_fixes():
    spec = problems.load(1)
    name = spec.parameters()[0].name
    assert [place for place, _, _ in chain.movable(spec, [torch.randn(4, 4)])] == [0]
    assert chain.movable(spec, [torch.ones(4, 4, dtype=torch.int64)]) == []
    assert chain.movable(spec, [torch.randn(1)]) == []
    assert chain.movable(spec, [torch.randn(4).to(torch.float8_e4m3fn)]) == []
    assert chain.movable(dataclasses.replace(spec, fixed=(name,)), [torch.randn(4, 4)]) == []
    assert [place for place, _, _ in chain.movable(spec, [[None, "x", torch.randn(3)]])] == [2]
    table = Table(9, torch.arange(3), torch.randn(3, 4))
    assert chain.movable(spec, [table]) == [], "calls of a block share their tables"


@pytest.mark.parametrize("name", problems.names())
def test_the_answer_to_moved_inputs_is_another_and_the_reference_finds_it(name, ranks):
    """Also that moved inputs are still inputs: the reference's error against the oracle is as small as ever."""
    spec = problems.load(name)
    given = [inputs_of(name, rank, 2, trial=TIMING_TRIAL, dtype="bfloat16") for rank in range(2)]
    place = chain.choose([chain.movable(spec, inputs) for inputs in given])
    assert (place is None) == (name in NOTHING_TO_MOVE)
    if place is None:
        return
    changed = [i for i, p in enumerate(spec.parameters()) if p.name in spec.mutates]
    stale = ranks.solve(name, given=given)
    moved = [tree.clone(inputs) for inputs in given]
    for inputs, answer in zip(moved, stale, strict=True):
        chain.move(inputs, place, sum_of(answer.output, answer.after, changed))
    fresh, oracle = ranks.solve(name, given=moved), ranks.solve(name, given=moved, wide=spec.oracle == "upcast")
    shows = False
    for rank in range(2):
        runs = iter([(a[rank].output, a[rank].after) for a in (fresh, oracle)])
        expected = compare.expect(spec, moved[rank], lambda inputs, runs=runs: next(runs))
        assert compare.judge(expected, fresh[rank].output, fresh[rank].after).right
        after = [x if i in changed else expected.inputs[i] for i, x in enumerate(stale[rank].after)]
        shows |= not compare.judge(expected, stale[rank].output, after).right
    assert shows or name in HARDLY_SHOWS, "an answer to inputs that have not moved passes"
