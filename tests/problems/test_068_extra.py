"""The table of problem 068 is described by the rows that are drawn: those that are fetched, and as many more."""

import math

import pytest
import torch

from pkb import problem as problems
from pkb.draw import trial_key
from pkb.problem import VARIANTS
from pkb.table import Table
from tests.problems.ranks import SECRET

NAME = "068_gnn_sparse_feature_fetch_projection"


def drawn(trial, world_size=4, preset="smoke", dtype="bfloat16", dims=None):
    """Inputs of every rank, as the spec makes them."""
    spec = problems.load(NAME)
    shape = spec.shape(world_size, preset, dtype, dims)
    key = trial_key(SECRET, NAME, trial)
    return [spec.make_inputs(spec.context(shape, rank, trial, key)) for rank in range(world_size)]


@pytest.mark.parametrize("trial", range(len(VARIANTS)), ids=VARIANTS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_every_row_that_anybody_fetches_was_drawn_for_this_trial(trial, world_size):
    ranks = drawn(trial, world_size)
    total = ranks[0][3]
    assert sum(r[0].height for r in ranks) == total
    per_rank = math.ceil(total / world_size)
    for _, ids, *_ in ranks:
        owners = ids // per_rank
        for owner in range(world_size):
            wanted = ids[owners == owner] - owner * per_rank
            assert torch.isin(wanted, ranks[owner][0].rows).all()
    for table, *_ in ranks:
        assert torch.equal(table.rows, table.rows.unique()) and int(table.rows[-1]) < table.height


@pytest.mark.parametrize("trial", range(len(VARIANTS)), ids=VARIANTS)
def test_drawn_rows_tell_neither_what_is_fetched_nor_what_is_in_them(trial):
    """Of the rows that differ from the pattern at most about half are fetched; none looks like the pattern or like another trial's."""
    ranks = drawn(trial, world_size=2, dims={"V": 400_001})
    fetched = torch.cat([ids for _, ids, *_ in ranks]).unique()
    assert fetched.numel() < 0.6 * sum(table.rows.numel() for table, *_ in ranks)
    later = drawn(trial + 5, world_size=2, dims={"V": 400_001})
    for (table, *_), (other, *_) in zip(ranks, later, strict=True):
        pattern = Table(table.height, table.rows[:0], table.values[:0]).tensor()
        assert (pattern[table.rows] == table.values).float().mean() < 0.2
        assert not torch.equal(table.values[:100], other.values[:100])
        assert torch.isin(table.rows, other.rows).float().mean() < 0.1, "nor is what was fetched in another trial of use"
        assert table.values.unique(dim=0).shape[0] == table.values.shape[0]


def test_values_lie_on_the_grid_with_a_power_of_two_for_the_row_in_the_wide_trial():
    plain, wide = (drawn(trial, dtype="float32")[0][0].values for trial in (0, 2))
    assert torch.equal(plain * 8, (plain * 8).round()) and plain.abs().max() < 4
    scale = wide.abs().amax(1) / plain.abs().max()
    assert scale.max() > 2 and scale.min() < 0.01


def test_at_the_published_size_a_draw_stays_small():
    """28.4 GB of table are described by some tens of MB."""
    table, ids, proj, total = drawn(0, world_size=2, preset="default")[1]
    assert total == 111_000_000 and table.shape == (55_500_000, 256) and table.nbytes > 28e9
    assert sum(t.nbytes for t in (table.rows, table.values, ids, proj)) < 60e6


@pytest.mark.parametrize("name", problems.names())
def test_no_problem_changes_a_table(name):
    spec = problems.load(name)
    world_size = next(w for w in (2, 4) if spec.admissible(problems.Shape(w, spec.dimensions("smoke"))) is None)
    shape = spec.shape(world_size, "smoke")
    inputs = spec.make_inputs(spec.context(shape, 0, 0, b"key"))
    assert not (spec.mutates and any(isinstance(x, Table) for x in inputs))
