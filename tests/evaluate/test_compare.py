"""The rule by which an answer is right: what must pass, what must not, and what a failure says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb.draw import Draw
from pkb.evaluate import compare
from pkb.problem import Cost, Problem, Tolerance

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WORLD = 8


@pytest.fixture(scope="session")
def spec(tmp_path_factory):
    """A problem whose only contents are its contract."""

    def make(parameters="x", **contract):
        folder = tmp_path_factory.mktemp("problem")
        (folder / "reference.py").write_text(f"def solution({parameters}):\n    return x\n")
        return Problem(
            "t", "other", "s", {}, lambda ctx: [], lambda shape: Cost(0, 0, 0, 0), folder=folder, name="001_t", **contract
        )

    return make


@pytest.fixture(scope="session")
def plain(spec):
    return spec()


def in_order(x):
    """The sum of the addends along dim 0, rounded after each, as a ring all-reduce does it."""
    total = x[0].clone()
    for addend in x[1:]:
        total += addend
    return total


def expected_of(problem, solve, *inputs):
    """What is expected where ``solve(*inputs) -> output`` is the reference; inputs that it changes are noticed."""

    def run(live):
        output = solve(*live)
        return output, live

    return compare.expect(problem, list(inputs), run)


def judged(expected, output, after=None):
    return compare.judge(expected, output, [x.clone() for x in expected.inputs] if after is None else after)


def addends(dtype, scale=1.0, shape=(WORLD, 64, 48), seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


# -- what must pass ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_reference_itself_is_well_inside(plain, dtype):
    x = addends(dtype)
    assert judged(expected_of(plain, in_order, x), in_order(x)).error <= 1 / 6 + 1e-9


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize(
    "honest",
    [
        lambda x: in_order(x.flip(0)),
        lambda x: in_order(torch.stack([in_order(x[0::2]), in_order(x[1::2])])),
        lambda x: x.sum(0),
    ],
    ids=["reversed", "tree", "wide accumulator"],
)
def test_an_honest_reordering_is_right(plain, dtype, honest):
    x = addends(dtype)
    assert judged(expected_of(plain, in_order, x), honest(x)).right


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FLOATS[:3]), st.floats(-20, 10), st.integers(0, 5), st.integers(1, 9))
def test_a_more_accurate_answer_is_never_wrong(plain, dtype, power, seed, columns):
    x = addends(dtype, 2.0 ** (power if dtype is not torch.float16 else power / 4), (WORLD, columns), seed)
    best = x.to(torch.float64).sum(0).to(dtype)
    assert judged(expected_of(plain, in_order, x), best).right


def test_exact_sums_leave_room_for_a_few_roundings_only(plain):
    """Small integers: the reference errs not at all, so only the floor is left."""
    x = torch.randint(-8, 9, (WORLD, 4000), generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    expected = expected_of(plain, in_order, x)
    right = in_order(x)
    assert judged(expected, right).error == 0
    next_up = torch.where(torch.arange(4000) % 5 == 0, right * (1 + 2**-7), right)
    assert 0 < judged(expected, next_up).error <= 1
    assert not judged(expected, right * (1 + 2**-5)).right


def test_double_precision_has_no_better_oracle_and_needs_room_of_its_own(spec):
    x = addends(torch.float64)
    assert not judged(expected_of(spec(tolerance=Tolerance(floor_ulps=0.1)), in_order, x), in_order(x.flip(0))).right
    assert judged(expected_of(spec(tolerance=Tolerance(floor_ulps=1e3)), in_order, x), in_order(x.flip(0))).right


def test_an_answer_where_the_reference_overflowed_may_be_finite_or_the_same(plain):
    x = torch.full((2, 3), 40_000.0, dtype=torch.float16)
    x[1] = torch.tensor([40_000.0, -40_000.0, 1.0])
    expected = expected_of(plain, in_order, x)
    assert judged(expected, torch.tensor([math.inf, 0.0, 40_000.0], dtype=torch.float16)).right


# -- what must not -----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FLOATS), st.floats(-14, 4), st.integers(0, 3))
def test_zeros_never_pass_whatever_the_scale(plain, dtype, power, seed):
    x = addends(dtype, 2.0**power, (WORLD, 500), seed)
    assert not judged(expected_of(plain, in_order, x), torch.zeros(500, dtype=dtype)).right


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x[0].clone(),
        lambda x: in_order(x[:-1]),
        lambda x: in_order(x) / WORLD,
        lambda x: in_order(x).roll(1, -1),
        lambda x: in_order(x) * 1.05,
        lambda x: torch.where(torch.arange(x.shape[-1]) == 7, in_order(x) + 1, in_order(x)),
    ],
    ids=["local part", "one rank missing", "mean", "shifted", "5 % off", "one column off"],
)
def test_wrong_values_are_wrong_in_every_dtype(plain, dtype, wrong):
    x = addends(dtype)
    found = judged(expected_of(plain, in_order, x), wrong(x))
    assert found.structure and not found.right and found.error > 1


def test_one_wrong_element_among_many_is_seen_and_named(plain):
    x = addends(torch.float32, shape=(WORLD, 100, 300))
    answer = in_order(x)
    answer[37, 251] += 0.5
    found = judged(expected_of(plain, in_order, x), answer)
    assert found.detail.startswith("output[37, 251]: expected ") and "got" in found.detail


def through_int8(x):
    scale = x.abs().amax((1, 2), keepdim=True).float() / 127
    return in_order(((x / scale).round().clamp(-127, 127) * scale).to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_transfer_quantised_to_8_bits_fails(plain, dtype):
    x = addends(dtype)
    assert judged(expected_of(plain, in_order, x), through_int8(x)).error > 2


@pytest.mark.parametrize("variant", ["integers", "wide"])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_in_bfloat16_8_bits_fail_element_by_element(spec, variant, world_size):
    """bfloat16 has 8 bits of its own, so RMS errors alone hardly tell: that is why sums are compared within each octave."""
    x = Draw(b"k", b"own", variant, "bfloat16", "cpu").values(world_size, 64, 96)
    expected = expected_of(spec(tolerance=Tolerance(elementwise=True)), in_order, x)
    assert judged(expected, through_int8(x)).error > 2
    assert judged(expected, in_order(x.flip(0))).right


def test_a_transfer_in_bfloat16_fails_where_float32_is_asked_for(plain):
    x = addends(torch.float32)
    assert not judged(expected_of(plain, in_order, x), in_order(x.to(torch.bfloat16).to(torch.float32))).right


# -- NaN and infinity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "candidate", "right"),
    [
        (1.0, math.nan, False),
        (1.0, math.inf, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.nan, math.inf, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 1.0, False),
        (math.inf, math.nan, False),
    ],
)
def test_nan_and_infinity_stand_where_the_reference_has_them(plain, reference, candidate, right):
    x = torch.tensor([1.0, reference, 2.0])
    found = judged(expected_of(plain, torch.clone, x), torch.tensor([1.0, candidate, 2.0]))
    assert found.right == right
    if not right:
        assert "output[1]" in found.detail


def test_an_answer_of_nan_alone_is_wrong(plain):
    x = addends(torch.bfloat16)
    assert judged(expected_of(plain, in_order, x), torch.full_like(x[0], math.nan)).error == math.inf


# -- exact comparison --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool], ids=str)
def test_integers_are_compared_exactly(plain, dtype):
    x = torch.arange(12).reshape(3, 4).to(dtype)
    expected = expected_of(plain, torch.clone, x)
    assert judged(expected, x.clone()).error == 0
    off = x.clone()
    off[2, 1] = not off[2, 1] if dtype is torch.bool else off[2, 1] - 1
    found = judged(expected, off)
    assert found.error == math.inf and found.detail.startswith("output[2, 1]") and "compared exactly" in found.detail


def test_exact_floats_are_bitwise_but_for_the_sign_of_zero(spec):
    exact = spec(tolerance=Tolerance(exact=True))
    x = torch.tensor([0.0, 1.0, math.nan])
    expected = expected_of(exact, torch.clone, x)
    assert judged(expected, torch.tensor([-0.0, 1.0, math.nan])).right
    assert not judged(expected, torch.tensor([0.0, 1.0 + 2**-23, math.nan])).right


def test_numbers_among_the_outputs_are_compared(plain):
    x = torch.ones(2)
    expected = expected_of(plain, lambda x: (x.clone(), 3, 0.5, None), x)
    assert judged(expected, (x, 3, 0.5 * (1 + 1e-9), None)).right
    assert judged(expected, (x, 4, 0.5, None)).detail == "output[1]: expected 3, got 4"
    assert not judged(expected, (x, 3, 0.6, None)).right


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: x.double(), "expected float32[4, 3], got float64[4, 3]"),
        (lambda x: x.t(), "expected float32[4, 3], got float32[3, 4]"),
        (lambda x: x.flatten(), "got float32[12]"),
        (lambda x: [x], "got list(float32[4, 3])"),
        (lambda x: (x, x), "got tuple(float32[4, 3], float32[4, 3])"),
        (lambda x: None, "got None"),
        (lambda x: 1.0, "got 1.0"),
        (lambda x: x.to_sparse(), "expected float32[4, 3]"),
        (lambda x: {"not a plain tensor": "Lazy"}, "not a plain tensor (Lazy)"),
        (lambda x: {"x": x}, "expected float32[4, 3]"),
    ],
)
def test_another_structure_is_named(plain, answer, said):
    x = torch.ones(4, 3)
    found = judged(expected_of(plain, torch.clone, x), answer(x))
    assert not found.structure and not found.right and said in found.detail


def test_strides_do_not_matter(plain):
    x = torch.randn(4, 3)
    assert judged(expected_of(plain, torch.clone, x), x.t().contiguous().t()).right


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_an_input_that_was_changed_is_a_fault_of_its_own(spec):
    two = spec("x, weight")
    x, weight = torch.randn(3), torch.randn(3)
    expected = expected_of(two, lambda x, w: x * w, x, weight)
    changed = weight.clone()
    changed[1] = torch.nextafter(changed[1], torch.tensor(math.inf))
    found = judged(expected, x * weight, [x.clone(), changed])
    assert found.error == math.inf and found.detail.startswith("input 'weight' was changed")
    assert judged(expected, x * weight, [x.clone(), None]).right, "an input that was not handed over is not compared"


def test_inputs_may_hold_nan_and_still_be_unchanged(plain):
    x = torch.tensor([math.nan, 1.0])
    assert judged(expected_of(plain, torch.clone, x), x.clone(), [x.clone()]).right


def test_mutated_inputs_are_outputs(spec):
    inplace = spec("x, cache", mutates=("cache",))

    def append(x, cache):
        cache[0] += x
        return None

    x, cache = torch.randn(3), torch.randn(2, 3)
    expected = expected_of(inplace, append, x, cache)
    right = cache.clone()
    right[0] += x
    assert judged(expected, None, [x.clone(), right]).right
    found = judged(expected, None, [x.clone(), cache.clone()])
    assert found.structure and found.detail.startswith("cache[0, ")
    assert not judged(expected, None, [x.clone(), None]).right, "what the problem changes must be handed over"


def test_an_observation_replaces_the_raw_outputs(spec):
    """An optimiser step of 1e-6 on weights of 1 is invisible in the weights, and everything in their change."""
    step = spec("w, g", mutates=("w",), observe=lambda before, output, after: {"change": after[0] - before[0]})

    def update(w, g):
        w -= 1e-6 * g

    w, g = torch.randn(400), torch.randn(400)
    expected = expected_of(step, update, w, g)
    right = w.clone()
    update(right, g)
    assert judged(expected, None, [right, g.clone()]).right
    found = judged(expected, None, [w.clone(), g.clone()])
    assert not found.right and found.detail.startswith("observed['change'][")


# -- tolerances of their own -------------------------------------------------------------------------------------------


def test_elementwise_sees_errors_that_large_elements_hide(spec):
    x = torch.exp2(-20 * torch.rand(4000, generator=torch.Generator().manual_seed(1))).to(torch.float32)
    answer = x.clone()
    answer[x < 2**-15] *= 1.0001
    relaxed = expected_of(spec(tolerance=Tolerance(floor_ulps=64)), torch.clone, x)
    strict = expected_of(spec(tolerance=Tolerance(floor_ulps=64, elementwise=True)), torch.clone, x)
    assert judged(relaxed, answer).right and not judged(strict, answer).right
    assert judged(strict, x.clone()).right


def test_elementwise_accepts_an_honest_reordering(spec):
    x = (torch.rand(WORLD, 5000, generator=torch.Generator().manual_seed(2)) * torch.exp2(-12 * torch.rand(5000))).to(
        torch.bfloat16
    )
    expected = expected_of(spec(tolerance=Tolerance(elementwise=True)), in_order, x)
    assert judged(expected, in_order(x.flip(0))).right
    assert not judged(expected, torch.zeros_like(x[0])).right


def test_elementwise_allows_for_cancellation_that_the_reference_happens_to_get_right(spec):
    """One sum is far below all others, and only in the other order do large addends swallow it."""
    x = addends(torch.bfloat16, shape=(4, 1000))
    x[:, 7] = torch.tensor([0.0, 1.0, -1.0, 2.0**-20])
    assert in_order(x)[7] == 2.0**-20 and in_order(x.flip(0))[7] == 0
    assert judged(expected_of(spec(tolerance=Tolerance(elementwise=True)), in_order, x), in_order(x.flip(0))).right


@pytest.mark.parametrize("seed", range(24))
def test_elementwise_accepts_every_order_on_small_tensors_of_large_range(spec, seed):
    x = torch.stack([Draw(b"%d" % seed, b"%d" % r, "wide", "bfloat16", "cpu").values(64, 96) for r in range(4)])
    expected = expected_of(spec(tolerance=Tolerance(elementwise=True)), in_order, x)
    for other in (x.flip(0), x.roll(1, 0)):
        assert judged(expected, in_order(other)).right
    assert judged(expected, through_int8(x)).error > 2


def test_unordered_rows_may_come_in_any_order_but_all_must_come(spec):
    bag = spec(tolerance=Tolerance(unordered=True))
    x = torch.randint(0, 3, (40, 4)).to(torch.float32)
    expected = expected_of(bag, torch.clone, x)
    assert judged(expected, x[torch.randperm(40)]).right
    doubled = x.clone()
    doubled[0] = x[(x != x[0]).any(1).nonzero()[0, 0]]
    assert not judged(expected, doubled).right


def test_each_output_has_its_own_tolerance(spec):
    two = spec(tolerance=(Tolerance(exact=True), Tolerance()))
    x = torch.randn(50)
    expected = expected_of(two, lambda x: (x.clone(), x * 3), x)
    near = x * (1 + 2**-23)
    assert judged(expected, (x, 3 * near)).right
    assert judged(expected, (near, 3 * x)).detail.startswith("output[0][")


# -- other kinds of tensor ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_answers_are_compared_by_part(plain, dtype):
    x = torch.view_as_complex(addends(torch.float64, shape=(WORLD, 90, 2))).to(dtype)
    expected = expected_of(plain, in_order, x)
    assert dtype is torch.complex128 or judged(expected, in_order(x.flip(0))).right
    assert judged(expected, in_order(x).conj().conj()).right
    assert not judged(expected, in_order(x).conj().resolve_conj()).right
    lone = in_order(x)
    lone[17] += 1e-2j
    assert judged(expected, lone).detail.startswith("output[17]: expected ")


def test_sparse_answers_are_compared_by_value(plain):
    x = torch.randn(5, 4)
    x[x.abs() < 0.8] = 0
    sent = x.to_sparse()
    expected = compare.expect(plain, [x], lambda live: (live[0].to_sparse(), live))
    assert judged(expected, sent).right
    assert not judged(expected, (sent * 2).coalesce()).right
    assert not judged(expected, x).structure


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(
    "shape",
    [lambda x: x[:0], lambda x: x[:0].as_strided((0, 3), (0, 0)), lambda x: x[:1].as_strided((1, 1), (7, 3)), lambda x: x[0]],
    ids=["empty", "empty, stride 0", "one element, any stride", "scalar"],
)
def test_empty_and_single_tensors_are_compared_too(plain, dtype, shape):
    x = shape(torch.ones(4, dtype=dtype))
    expected = expected_of(plain, lambda x: x.clone(), x)
    assert judged(expected, x.clone(), [x]).error == 0
    if x.numel():
        assert not judged(expected, torch.zeros_like(x), [x]).right
    assert not judged(expected, torch.ones(2, dtype=dtype), [x]).structure


# -- timed calls -------------------------------------------------------------------------------------------------------


def test_timed_calls_borrow_a_plain_trials_calibration(plain):
    """Only the same-dtype answer of a timed call is known, so its own error is allowed once more."""
    known = expected_of(plain, in_order, addends(torch.bfloat16, seed=1))
    x = addends(torch.bfloat16, seed=2)
    expected = compare.expect_like(plain, [x], (in_order(x), [x]), known)
    assert judged(expected, in_order(x.flip(0))).right
    assert judged(expected, x.sum(0)).right
    for wrong in (torch.zeros_like(x[0]), x[0], in_order(x[:-1]), in_order(addends(torch.bfloat16, seed=1))):
        assert not judged(expected, wrong).right


def test_a_reference_that_is_its_own_oracle_is_exact_up_to_the_floor(spec):
    x = torch.randn(300)
    expected = expected_of(spec(oracle="reference"), lambda x: (x * 4).round() / 4, x)
    assert judged(expected, (x * 4).round() / 4).error == 0
    assert not judged(expected, x).right
