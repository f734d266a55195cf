"""Veiled input sets: nothing of them shows, and the key brings them back to the last bit."""

import pytest
import torch

from pkb import tree
from pkb.evaluate.compare import same_answer
from pkb.evaluate.veil import lifted, veiled
from pkb.table import Table

SETS = {
    "floats": torch.randn(7, 5, dtype=torch.bfloat16),
    "odd bytes": torch.arange(13, dtype=torch.uint8),
    "flags": torch.rand(11) > 0.5,
    "permuted": torch.zeros(4, 3, 6).permute(2, 1, 0),
    "expanded": torch.ones(1, 4).expand(5, 4),
    "a part of another": torch.arange(40, dtype=torch.int32)[3:20],
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "complex": torch.randn(6, dtype=torch.complex64),
    "leaf": torch.randn(9, requires_grad=True),
    "table": Table(50, torch.tensor([3, 4]), torch.randn(2, 8)),
    "several": [torch.zeros(64, dtype=torch.int64), 3, None, "x", {"a": torch.zeros(64, dtype=torch.int64)}],
}


@pytest.mark.parametrize("name", SETS)
def test_the_key_brings_back_what_was_sent(name):
    given = [SETS[name]]
    before = tree.clone(given)
    hidden = veiled(given, 5, "cpu")
    assert same_answer(given, before), "the original is left alone"
    assert same_answer(hidden, before) == (name == "empty")
    back = lifted(hidden, 5, "cpu")
    assert same_answer(back, before)
    assert [t.requires_grad for t in tree.tensors(back)] == [t.requires_grad for t in tree.tensors(before)]


def test_zeros_under_a_veil_look_like_noise_and_no_two_alike():
    hidden = tree.tensors(veiled([torch.zeros(4096, dtype=torch.int64), torch.zeros(4096, dtype=torch.int64)], 5, "cpu"))
    bits = torch.stack([(hidden[0] >> n) & 1 for n in range(64)]).float().mean(1)
    assert (bits - 0.5).abs().max() < 0.05
    assert not torch.equal(*hidden)
    assert not torch.equal(hidden[0], veiled([torch.zeros(4096, dtype=torch.int64)], 6, "cpu")[0])


def test_another_key_brings_back_nothing():
    x = torch.randn(100)
    assert not torch.equal(lifted(veiled([x], 5, "cpu"), 6, "cpu")[0], x)
