"""The physical bound: below what honest kernels reach, above what only a falsified clock shows."""

from pkb import problem
from pkb.evaluate.bound import bound_ms
from pkb.problem import Cost


def test_it_grows_with_bytes_and_arithmetic():
    small = Cost(sent_bytes=1e6, flops=0.0, memory_bytes=1.0, footprint_bytes=1.0)
    assert bound_ms(Cost(sent_bytes=2e6, flops=0.0, memory_bytes=1.0, footprint_bytes=1.0), "cuda") == 2 * bound_ms(
        small, "cuda"
    )
    assert bound_ms(Cost(sent_bytes=1.0, flops=1e15, memory_bytes=1.0, footprint_bytes=1.0), "cuda") > bound_ms(small, "cuda")


def test_the_least_bytes_count_where_they_are_known():
    stated = Cost(sent_bytes=1e9, flops=0.0, memory_bytes=1.0, footprint_bytes=1.0, least_sent_bytes=1e6)
    assert bound_ms(stated, "cuda") < 0.01


def test_a_gigabyte_over_nvlink_takes_at_least_half_a_millisecond():
    assert bound_ms(Cost(sent_bytes=1e9, flops=0.0, memory_bytes=1.0, footprint_bytes=1.0), "cuda") > 0.5


def test_no_problem_has_a_bound_above_what_a_laptop_reaches_at_smoke():
    for name in problem.names():
        spec = problem.load(name)
        shape = problem.Shape(2, spec.dimensions("smoke"), "bfloat16")
        if spec.admissible(shape) is None:
            assert bound_ms(spec.cost(shape), "cpu") < 0.02, name
