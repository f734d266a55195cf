"""A table that is described by a few of its rows is the same tensor in every process, and never lies in memory twice."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pkb import table, tree
from pkb.table import PATTERN_ROWS, Table


def described(height, rows, width=3, dtype=torch.bfloat16, seed=1):
    values = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return Table(height, torch.tensor(rows, dtype=torch.int64), values)


def others(x, rows):
    keep = torch.ones(x.shape[0], dtype=torch.bool)
    keep[rows] = False
    return x[keep]


class Allocations(TorchDispatchMode):
    """Bytes of every tensor that is made with memory of its own."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        def places(x):
            return {t.untyped_storage().data_ptr() for t in tree.tensors(x)}

        given = places([list(args), list((kwargs or {}).values())])
        result = func(*args, **(kwargs or {}))
        self.made += [t.untyped_storage().nbytes() for t in tree.tensors(result) if not places(t) <= given]
        return result


@pytest.mark.parametrize("height", [1, 5, PATTERN_ROWS - 1, PATTERN_ROWS, 2 * PATTERN_ROWS + 1, 5 * PATTERN_ROWS - 3])
def test_the_rows_that_were_drawn_stand_in_a_pattern_that_repeats(height):
    t = described(height, [height - 1])
    real = t.tensor()
    assert real.shape == t.shape == (height, 3) and real.dtype == t.dtype and real.nbytes == t.nbytes
    assert torch.equal(real[-1:], t.values)
    bare = described(height, []).tensor()
    assert torch.equal(others(real, [height - 1]), bare[:-1])
    assert torch.equal(bare, bare[torch.arange(height) % PATTERN_ROWS])
    if height > 100:
        assert bare.float().std() == pytest.approx(1.0, abs=0.2) and bare.unique(dim=0).shape[0] > 0.9 * min(
            height, PATTERN_ROWS
        )


def test_the_pattern_is_the_same_number_in_every_dtype():
    t = described(9000, [17, 4, 8999])
    assert torch.equal(tree.upcast(t).tensor(), t.tensor().double())
    assert tree.upcast(t).dtype is torch.float64


def test_a_description_of_no_rows_at_all_is_a_table_too():
    assert described(0, []).tensor().shape == (0, 3)


@pytest.mark.parametrize(
    "parts",
    [
        (5, torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3)),
        (5, torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 3)),
        (5, torch.zeros(2, dtype=torch.int64), torch.zeros(3, 3)),
        (5, torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)),
        (-1, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3)),
    ],
    ids=["narrow row numbers", "matrix of row numbers", "too many values", "integers", "negative height"],
)
def test_parts_that_do_not_fit_are_refused(parts):
    with pytest.raises(ValueError, match="row numbers"):
        Table(*parts)


def test_walking_a_tree_sees_rows_and_values():
    t = described(100, [3, 50])
    assert [path for path, _ in tree.leaves([1, t])] == ["[0]", "[1].rows", "[1].values"]
    copy = tree.clone([t])[0]
    copy.values.zero_()
    assert not torch.equal(copy.values, t.values) and copy.height == 100


def test_a_table_written_and_erased_leaves_the_pattern():
    a, b = described(9000, [5, 4096, 8000], seed=1), described(8990, [5, 6], seed=2)
    (room,) = table.rooms([[None, a], [None, b]], "cpu").values()
    assert room.shape[0] == 9000
    for t in (a, b, a):
        assert torch.equal(t.write(room), t.tensor())
        t.erase(room)
    assert torch.equal(room, described(9000, []).tensor())


def test_tables_of_one_block_share_memory_and_each_finds_its_rows():
    sets = [[described(9000, [n, 10 + n], seed=n), n] for n in range(3)]
    within = table.rooms(sets, "cpu")
    real = [table.real(s, "cpu", within) for s in sets]
    assert len({r[0].data_ptr() for r in real}) == 1
    for s, r in zip(sets, real, strict=True):
        assert torch.equal(r[0][s[0].rows], s[0].values) and r[1] == s[1]


# -- checksums ---------------------------------------------------------------------------------------------------------


def swapped(x):
    x[[0, 1]] = x[[1, 0]]


def nudged(x):
    x.view(torch.uint8)[-1, -1] ^= 1


def filled(x):
    x[700] = 0


@pytest.mark.parametrize("change", [swapped, nudged, filled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("words", [64, 1 << 22])
def test_any_small_change_changes_the_checksum(change, width, words, monkeypatch):
    monkeypatch.setattr(table, "WORDS", words)
    x = described(1001, list(range(1001)), width).tensor()
    before = int(table.checksum(x))
    assert int(table.checksum(x.clone())) == before
    change(x)
    assert int(table.checksum(x)) != before


def test_of_tables_the_checksum_is_told_and_of_other_inputs_themselves():
    t, x = described(50, [1]), torch.ones(2)
    live = table.real([t, x, None], "cpu")
    told = table.told([t, x, None], live)
    assert told[0].shape == () and told[0] == table.checksum(t.tensor()) and told[1] is x and told[2] is None


def test_a_table_is_in_memory_once(monkeypatch):
    """Neither making it nor changing its rows nor summing it takes memory of its size."""
    monkeypatch.setattr(table, "WORDS", 1 << 10)
    t = described(40 * PATTERN_ROWS, list(range(20)), 8)
    described(1, [], 8).tensor()  # the pattern itself is made once for all
    with Allocations() as seen:
        real = t.tensor()
        table.checksum(real)
        t.erase(real)
    assert sorted(seen.made)[-1] == t.nbytes
    assert sorted(seen.made)[-2] <= max(8 << 10, PATTERN_ROWS * 8 * 2) < t.nbytes / 30
