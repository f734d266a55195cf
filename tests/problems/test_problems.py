"""What every problem must satisfy, one parametrised test per property."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

from pkb import problem as problems
from pkb import tree
from pkb.problem import VARIANTS, Cost
from tests.problems.ranks import inputs_of

ALL = problems.names()
SHARED = Path(__file__).resolve().parents[3] / "shared"
WORLDS = (2, 4)


def admissible(name, world_size, preset="smoke"):
    spec = problems.load(name)
    return spec.admissible(_shape(spec, world_size, preset)) is None


def _shape(spec, world_size, preset):
    return problems.Shape(world_size, spec.dimensions(preset), "bfloat16")


def worlds_of(name):
    return [w for w in WORLDS if admissible(name, w)]


def statement_of(name):
    """The independent statement tests/problems/statements/NNN_stem.py: statement(inputs by rank) -> outputs by rank."""
    try:
        return importlib.import_module(f"tests.problems.statements.s{name}").statement
    except ModuleNotFoundError:
        return None


def same_structure(a, b):
    la, lb = list(tree.leaves(a)), list(tree.leaves(b))
    assert [p for p, _ in la] == [p for p, _ in lb]
    return zip(la, lb, strict=True)


def error(got, want):
    """Normwise relative error, exact for integers; shapes and finiteness must agree."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)} against {tuple(want.shape)}"
    got, want = (x.to_dense() if x.is_sparse else x for x in (got, want))
    if not (got.is_floating_point() or got.is_complex()):
        return 0.0 if torch.equal(got, want.to(got.dtype)) else float("inf")
    kind = torch.complex128 if got.is_complex() else torch.float64
    got, want = got.to(kind), want.to(kind)
    if not torch.equal(torch.isfinite(got), torch.isfinite(want)):
        return float("inf")
    finite = torch.isfinite(want)
    if not torch.equal(got[~finite], want[~finite]):
        return float("inf")
    got, want = got[finite], want[finite]
    scale = want.norm().item()
    return (got - want).norm().item() / scale if scale else got.norm().item()


def assert_close(got, want, limit, what):
    for (path, g), (_, w) in same_structure(got, want):
        if isinstance(w, torch.Tensor):
            e = error(g, w)
            assert e <= limit, f"{what}{path}: normwise relative error {e:.2e} > {limit:.0e}"
        else:
            assert g == w, f"{what}{path}: {g!r} against {w!r}"


@pytest.mark.parametrize("name", ALL)
def test_signature_equals_the_card(name):
    card = SHARED / "problems" / f"{name}.md"
    if not card.exists():
        pytest.skip("cards are not part of the repository")
    text = card.read_text()
    stated = re.search(r"solution\((.*?)\)\s*(?:->|`|$)", text, re.S | re.M).group(1)
    want = [p.split("=")[0].split(":")[0].strip() for p in re.split(r",(?![^()\[\]]*[)\]])", stated)]
    assert [p.name for p in problems.load(name).parameters()] == [w for w in want if w]


@pytest.mark.parametrize("name", ALL)
def test_spec_is_complete(name):
    spec = problems.load(name)
    assert spec.category in problems.CATEGORIES and spec.title and spec.source
    assert set(spec.sizes) >= {"smoke", "default", "production"}
    assert len({tuple(dims) for dims in spec.sizes.values()}) == 1, "every preset has the same dimensions"
    assert spec.oracle in ("upcast", "reference")
    parameters = {p.name for p in spec.parameters()}
    assert set(spec.mutates) <= parameters
    assert ast.get_docstring(ast.parse(spec.reference_source)), "reference.py says what it computes"
    for preset in spec.sizes:
        for world_size in (2, 4, 8):
            shape = _shape(spec, world_size, preset)
            if spec.admissible(shape) is None:
                cost = spec.cost(shape)
                assert isinstance(cost, Cost) and cost.sent_bytes > 0 and cost.flops >= 0 and cost.memory_bytes > 0
                assert cost.least_sent_bytes is None or 0 < cost.least_sent_bytes <= cost.sent_bytes
    assert any(spec.admissible(_shape(spec, w, "smoke")) is None for w in (2, 4))


@pytest.mark.parametrize("name", ALL)
def test_production_fits_80_gb_per_rank(name):
    spec = problems.load(name)
    shape = _shape(spec, 8, "production")
    assert spec.admissible(shape) is None
    assert 0 < spec.cost(shape).footprint_bytes <= 80e9


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_reproducible_and_differ_by_trial(name):
    world_size = worlds_of(name)[0]
    first, again, later = (inputs_of(name, 0, world_size, trial=t) for t in (0, 0, 5))
    assert len(first) <= len(problems.load(name).parameters())
    assert_close(first, again, 0.0, "inputs")
    pairs = zip(tree.tensors(first), tree.tensors(later), strict=True)
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs), "trials 0 and 5 draw the same data"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("world_size", WORLDS)
def test_reference_runs_finite_small_and_new_each_trial(name, world_size, pools):
    if not admissible(name, world_size):
        pytest.skip("world size not admissible")
    answers = {}
    for trial in range(len(VARIANTS)):
        ranks = pools.solve(world_size, name, trial=trial, dtype="bfloat16")
        answers[trial] = ranks
        for rank, r in enumerate(ranks):
            assert r.seconds < 2.0, f"rank {rank}, trial {trial}: {r.seconds:.1f} s at smoke"
            touched = sum(t.values().nbytes if t.is_sparse else t.nbytes for t in tree.tensors([r.inputs, r.output]))
            assert touched < 200e6
            spec = problems.load(name)
            changed = {p.name for p, a, b in zip(spec.parameters(), r.inputs, r.after, strict=False) if _differs(a, b)}
            assert changed <= set(spec.mutates), f"undeclared in-place change of {changed - set(spec.mutates)}"
    plain = answers[0]
    for rank, r in enumerate(plain):
        for path, x in tree.leaves(r.output):
            if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
                ok = torch.isfinite(x.float() if not x.is_complex() else x).all()
                assert ok, f"rank {rank}, output{path} is not finite in the plain trial"
    second = pools.solve(world_size, name, trial=5, dtype="bfloat16")
    assert any(_differs([a.output, a.after], [b.output, b.after]) for a, b in zip(plain, second, strict=True))


def _differs(a, b):
    la, lb = tree.tensors(a), tree.tensors(b)
    return len(la) != len(lb) or any(x.shape != y.shape or not _same_bits(x, y) for x, y in zip(la, lb, strict=True))


def _same_bits(x, y):
    if x.is_sparse:
        return _same_bits(x.coalesce().values(), y.coalesce().values())
    return x.dtype == y.dtype and torch.equal(
        x.detach().reshape(-1).view(torch.uint8), y.detach().reshape(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("world_size", WORLDS)
def test_reference_agrees_with_the_single_process_statement(name, world_size, pools):
    statement = statement_of(name)
    if statement is None:
        pytest.skip("no short single-process statement of this problem")
    if not admissible(name, world_size):
        pytest.skip("world size not admissible")
    for trial in range(len(VARIANTS)):
        ranks = pools.solve(world_size, name, trial=trial, dtype="float32")
        want = statement([tree.clone(r.inputs) for r in ranks])
        for rank, (r, w) in enumerate(zip(ranks, want, strict=True)):
            assert_close(r.output, w, 1e-5, f"trial {trial} ({VARIANTS[trial]}), rank {rank}: output")


@pytest.mark.parametrize("name", ALL)
def test_bf16_is_near_the_float64_oracle(name, pools):
    spec = problems.load(name)
    if spec.oracle != "upcast":
        pytest.skip("rounding to the dtype is the contract")
    world_size = worlds_of(name)[0]
    ranks = pools.solve(world_size, name, trial=0, dtype="bfloat16")
    oracle = pools.solve(world_size, name, given=[r.inputs for r in ranks], wide=True)
    for rank, (r, o) in enumerate(zip(ranks, oracle, strict=True)):
        got, want = r.output, o.output
        if spec.observe:
            got = spec.observe(tree.upcast(r.inputs), tree.upcast(r.output), tree.upcast(r.after))
            want = spec.observe(tree.upcast(o.inputs), o.output, o.after)
        for (path, g), (_, w) in same_structure(got, want):
            if isinstance(g, torch.Tensor) and g.is_floating_point():
                assert error(g, w) < 5e-2, f"rank {rank}: output{path} {error(g, w):.1e} from the oracle"


@pytest.mark.parametrize("name", ALL)
def test_reference_agrees_with_the_golden_case(name, pools):
    case = SHARED / "golden" / f"{name[:3]}.pt"
    if not case.exists():
        pytest.skip("no golden case of this problem here")
    golden = torch.load(case, weights_only=True)
    given = [[_decode(x) for x in r["inputs"]] for r in golden["ranks"]]
    ranks = pools.solve(golden["world_size"], name, given=given)
    for rank, (r, want) in enumerate(zip(ranks, golden["ranks"], strict=True)):
        assert_close(r.output, _decode(want["output"]), 1e-4, f"rank {rank}: output")
        if "inputs_after" in want:
            for i in want["mutates"]:
                assert_close(r.after[i], _decode(want["inputs_after"][i]), 1e-4, f"rank {rank}: input {i} after")


def _decode(x):
    """A golden case's value as the tree that ``solution`` takes."""
    if isinstance(x, list):
        return [_decode(i) for i in x]
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    if kind == "tuple":
        return tuple(_decode(i) for i in value)
    if kind == "size":
        return torch.Size(value)
    if kind == "group_ranks":
        return problems.GroupRef(tuple(value))
    if kind == "linear":
        layer = torch.nn.Linear(*reversed(value["weight"].shape), bias=value["bias"] is not None, dtype=value["weight"].dtype)
        layer.load_state_dict({k: v for k, v in value.items() if v is not None})
        return layer.requires_grad_(False)
    if kind == "sparse_coo":
        return torch.sparse_coo_tensor(value["indices"], value["values"], value["size"]).coalesce()
    if kind == "object":
        from types import SimpleNamespace

        return SimpleNamespace(**{k: _decode(v) for k, v in value.items()})
    assert kind == "dict"
    return {k: _decode(v) for k, v in value.items()}
