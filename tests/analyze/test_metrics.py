"""The estimators are what their definitions say, on every small case and on random tables."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb.analyze import best_of_k, fast_p, geometric_mean_speedup, pass_at_k
from pkb.analyze.metrics import unbiased
from pkb.errors import UserError
from tests.analyze.rows import evaluation

PROBLEMS = ("001_allreduce", "002_allgather", "003_broadcast")


def value_of(frame: pl.DataFrame) -> float | None:
    assert frame.height == 1
    return frame["value"].item()


def estimator(n: int, c: int, k: int) -> float | None:
    return pl.select(unbiased(pl.lit(n), pl.lit(c), k)).item()


def test_the_estimator_is_the_share_of_subsets_that_hold_a_correct_attempt() -> None:
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations(range(n), k))
            assert estimator(n, c, k) == pytest.approx(sum(any(i < c for i in d) for d in draws) / len(draws), abs=1e-12)


def test_the_estimator_is_undefined_without_enough_attempts() -> None:
    assert estimator(2, 0, 3) is None
    assert estimator(2, 2, 3) is None
    assert estimator(0, 0, 1) is None


def test_the_estimator_is_exactly_zero_and_one_at_the_ends() -> None:
    assert estimator(100, 0, 50) == 0.0
    assert estimator(100, 100, 1) == 1.0
    assert estimator(10, 8, 3) == 1.0


@pytest.mark.parametrize(
    ("n", "c", "k"), [(40, 3, 33), (200, 1, 100), (5000, 7, 2500), (100, 40, 50), (60, 60, 60), (64, 30, 34)]
)
def test_a_large_k_is_as_exact(n: int, c: int, k: int) -> None:
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert estimator(n, c, k) == pytest.approx(float(exact), rel=1e-11)
    assert estimator(n, 0, k) == 0.0


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_impossible_k_is_refused(k: object) -> None:
    with pytest.raises(UserError, match="at least 1"):
        pass_at_k(pl.DataFrame([evaluation("m", PROBLEMS[0], 0, "correct")], infer_schema_length=None), k)  # type: ignore[arg-type]


outcomes = st.one_of(
    st.tuples(st.just("correct"), st.floats(0.05, 5.0)),
    st.tuples(st.sampled_from(["mismatch", "no_code", "harness_error"]), st.none()),
)
tables = st.lists(st.lists(outcomes, min_size=1, max_size=6), min_size=1, max_size=3)


def frame_of(cells: list[list[tuple[str, float | None]]]) -> pl.DataFrame:
    rows = [
        evaluation("m", PROBLEMS[i], a, verdict, speedup)
        for i, cell in enumerate(cells)
        for a, (verdict, speedup) in enumerate(cell)
    ]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"speedup": pl.Float64, "speedup_low": pl.Float64})


def by_hand(cells: list[list[tuple[str, float | None]]], k: int, p: float) -> float | None:
    """Mean over problems of the share of k-subsets of the counted attempts that hold one which is correct and above p."""
    shares = []
    for cell in cells:
        counted = [(verdict, speedup) for verdict, speedup in cell if verdict != "harness_error"]
        draws = list(itertools.combinations(counted, k))
        if draws:
            good = sum(any(v == "correct" and (p < 0 or (s is not None and s > p)) for v, s in d) for d in draws)
            shares.append(good / len(draws))
    return sum(shares) / len(shares) if shares else None


@given(tables, st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
@settings(max_examples=40, deadline=None)
def test_metrics_equal_enumeration(cells: list[list[tuple[str, float | None]]], k: int, p: float) -> None:
    frame = frame_of(cells)
    for got, wanted in ((pass_at_k(frame, k), by_hand(cells, k, -1.0)), (fast_p(frame, p, k), by_hand(cells, k, p))):
        assert value_of(got) == (None if wanted is None else pytest.approx(wanted, abs=1e-12))
        assert got["problems"].item() + got["dropped"].item() == len(cells)


@given(tables, st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_the_order_of_rows_does_not_matter(cells: list[list[tuple[str, float | None]]], rng: random.Random) -> None:
    frame = frame_of(cells)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=rng.randrange(1000))
    for metric in (lambda f: pass_at_k(f, 2), lambda f: fast_p(f, 1.0, 1), lambda f: best_of_k(f, 2), geometric_mean_speedup):
        one, other = metric(frame), metric(shuffled)
        assert one.drop("value", "low", "high").equals(other.drop("value", "low", "high"))
        for column in ("value", "low", "high"):
            assert one[column].item() == (None if other[column].item() is None else pytest.approx(other[column].item()))


@given(tables)
@settings(max_examples=30, deadline=None)
def test_metrics_are_monotone_in_k_and_in_p(cells: list[list[tuple[str, float | None]]]) -> None:
    full = [[x for x in (cell * 6) if x[0] != "harness_error"][:4] for cell in cells]
    full = [cell for cell in full if len(cell) == 4]
    if not full:
        return
    frame = frame_of(full)
    by_k = [value_of(pass_at_k(frame, k)) for k in range(1, 5)]
    by_p = [value_of(fast_p(frame, p, 2)) for p in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert None not in by_k and None not in by_p
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(by_k))  # type: ignore[operator]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(by_p))  # type: ignore[operator]


def test_pass_at_1_is_the_share_of_correct_attempts() -> None:
    frame = frame_of([[("correct", 2.0), ("mismatch", None), ("mismatch", None), ("correct", 0.5)]])
    assert value_of(pass_at_k(frame, 1)) == 0.5
    assert value_of(fast_p(frame, 1.0, 1)) == 0.25


def test_best_of_k_takes_the_first_counted_attempts() -> None:
    frame = frame_of([[("harness_error", None), ("mismatch", None), ("correct", 2.0), ("mismatch", None)]])
    assert value_of(best_of_k(frame, 1)) == 0.0
    assert value_of(best_of_k(frame, 2)) == 1.0
    assert value_of(best_of_k(frame, 4)) is None


def test_times_on_shared_devices_are_never_fast() -> None:
    frame = pl.DataFrame([evaluation("m", PROBLEMS[0], 0, "correct", 9.0, shared_device=True)], infer_schema_length=None)
    assert value_of(pass_at_k(frame, 1)) == 1.0
    assert value_of(fast_p(frame, 1.0, 1)) == 0.0
    assert value_of(geometric_mean_speedup(frame)) is None


def test_the_lower_end_is_a_stricter_count() -> None:
    frame = frame_of([[("correct", 1.05)]])
    assert value_of(fast_p(frame, 1.0, 1)) == 1.0
    assert value_of(fast_p(frame, 1.0, 1, lower_end=True)) == 0.0


def test_the_mean_speedup_is_geometric_and_over_attempts() -> None:
    frame = frame_of([[("correct", 4.0), ("correct", 1.0)], [("correct", 0.25), ("mismatch", None)]])
    assert value_of(geometric_mean_speedup(frame)) == pytest.approx(math.exp((math.log(4) + 0 - math.log(4)) / 3))


def test_a_laxer_policy_takes_the_verdict_of_the_values() -> None:
    rows = [
        evaluation("m", PROBLEMS[0], 0, "forbidden", 2.0, measured="correct"),
        evaluation("m", PROBLEMS[0], 1, "forbidden", measured=None),
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    assert value_of(pass_at_k(frame, 1)) == 0.0
    assert value_of(pass_at_k(frame, 1, policy="any")) == 0.5
    assert value_of(fast_p(frame, 1.0, 1, policy="any")) == 0.5


def test_an_attempt_of_several_turns_is_its_best_turn() -> None:
    rows = [
        evaluation("m", PROBLEMS[0], 0, "correct", 1.5, turn=0),
        evaluation("m", PROBLEMS[0], 0, "correct", 3.0, turn=1),
        evaluation("m", PROBLEMS[0], 0, "mismatch", turn=2),
        evaluation("m", PROBLEMS[0], 1, "compile_error", turn=0),
        evaluation("m", PROBLEMS[0], 1, "mismatch", turn=1),
        evaluation("m", PROBLEMS[0], 2, "mismatch", turn=0),
        evaluation("m", PROBLEMS[0], 2, "harness_error", turn=1),
    ]
    from pkb.analyze import attempts

    found = attempts(pl.DataFrame(rows, infer_schema_length=None)).sort("attempt").collect()
    assert found["verdict"].to_list() == ["correct", "mismatch", "harness_error"]
    assert found["speedup"].to_list() == [3.0, None, None]
    assert found["counts"].to_list() == [True, True, False]
    assert found["turns"].to_list() == [3, 2, 2]
    assert found["solved_turn"].to_list() == [0, None, None]


def test_runs_and_models_are_never_averaged() -> None:
    rows = [evaluation("a", PROBLEMS[0], 0, "correct"), evaluation("a", PROBLEMS[0], 0, "mismatch") | {"run": "other"}]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    assert pass_at_k(frame, 1).select("run", "value").rows() == [("other", 0.0), ("r", 1.0)]


def test_an_unknown_group_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="category, project or problem"):
        pass_at_k(frame_of([[("correct", 1.0)]]), 1, by="colour")
