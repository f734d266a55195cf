"""Each known fault gets its name: candidates that are right but for one mistake, judged as any other."""

import pytest

from pkb.config import load
from pkb.evaluate.node import Evaluator
from pkb.records import Job
from pkb.verdict import Verdict
from tests.evaluate.faulty import candidate

SETTINGS = ["evaluation.timing.enabled=false", "evaluation.limits.call_seconds=3", "evaluation.trials=3"]


@pytest.fixture(scope="module")
def judge():
    with Evaluator(load(SETTINGS)) as evaluator:
        yield lambda problem, body, parameters="tensor": evaluator.evaluate(
            Job(problem, candidate(body, parameters), 2, "smoke")
        )


def diagnosed(evaluation, *kinds):
    """The diagnosis; its first kinds are these."""
    diagnosis = evaluation.extra["diagnosis"]
    assert tuple(diagnosis["kinds"][: len(kinds)]) == kinds, (evaluation.detail, diagnosis)
    return diagnosis


def first(evaluation, kind):
    return diagnosed(evaluation, kind)["findings"][0]


def test_the_prelude_alone_is_right(judge):
    assert judge("001_allreduce", "return total(tensor).to(tensor.dtype)").verdict is Verdict.CORRECT


def test_its_own_input(judge):
    found = judge("001_allreduce", "return tensor.clone()")
    assert first(found, "local")["ranks"] == [0, 1]
    assert found.extra["diagnosis"]["outputs"]["0"]["where"]["share"] > 0.9


def test_the_gathered_slots_hold_its_own_input(judge):
    assert first(judge("002_allgather", "return torch.stack([tensor, tensor])"), "local")["share"] == 1.0


def test_the_local_part_of_a_computation(judge):
    found = judge("013_gemm_allreduce", "return A_local @ B_local", parameters="A_local, B_local")
    assert "nothing is exchanged" in first(found, "local")["of"]


def test_what_another_rank_should_have_got(judge):
    body = "parts = total(tensor).to(tensor.dtype).chunk(2)\nreturn parts[1 - dist.get_rank()].contiguous()"
    found = judge("007_reducescatter", body)
    assert {(f["ranks"][0], f["sources"][0]) for f in diagnosed(found, "other rank")["findings"]} == {(0, 1), (1, 0)}


def test_the_blocks_of_a_gather_in_another_order(judge):
    found = first(judge("002_allgather", "return torch.stack(everyone(tensor)[::-1])"), "blocks")
    assert [(m["block"], m["holds"]["rank"], m["belongs"]["rank"]) for m in found["moved"]] == [(0, 1, 0), (1, 0, 1)]


def test_the_wrong_slices_of_an_all_to_all(judge):
    body = "r = dist.get_rank()\nreturn torch.stack([x[1 - r] for x in everyone(tensor)])"
    found = diagnosed(judge("008_alltoall", body), "blocks")["findings"]
    assert {tuple(f["ranks"]): f["moved"][0] for f in found}[(0,)] == {
        "block": 0,
        "holds": {"of": "input `tensor`", "rank": 0, "block": 1},
        "belongs": {"of": "input `tensor`", "rank": 0, "block": 0},
    }


def test_an_average_where_a_sum_is_asked_for(judge):
    assert first(judge("001_allreduce", "return (total(tensor) / 2).to(tensor.dtype)"), "factor")["factor"] == "1/2"


def test_a_term_that_is_counted_twice(judge):
    body = "return (total(tensor) + everyone(tensor)[0]).to(tensor.dtype)"
    assert first(judge("001_allreduce", body), "term doubled")["sources"] == [0]


def test_the_answer_to_the_call_before(judge):
    body = """
now = total(tensor).to(tensor.dtype)
before = getattr(dist, "kept", now)
dist.kept = now
return before if before.shape == now.shape else now
"""
    found = first(judge("001_allreduce", body), "stale")
    assert (found["which"], found["distance"]) == ("before", 1)


def test_a_peers_data_of_the_call_before(judge):
    body = """
everyone(tensor)
if shared.calls == 1:
    return total(tensor).to(tensor.dtype)
peer = 1 - shared.rank
return tensor + shared.view(peer, tensor, back=1)
"""
    found = judge("001_allreduce", body)
    assert {(f["ranks"][0], f["sources"][0], f["distance"]) for f in diagnosed(found, "stale")["findings"]} == {
        (0, 1, 1),
        (1, 0, 1),
    }


def test_a_missing_barrier_is_a_race(judge):
    """One half for all calls and one barrier per call: a rank may write its next tensor while a peer still reads this one."""
    body = """
global shared
shared = shared or Shared()
shared.view(shared.rank, tensor).copy_(tensor)
shared.handle.barrier()
return torch.stack([shared.view(r, tensor).float() for r in range(2)]).sum(0).to(tensor.dtype)
"""
    found = judge("001_allreduce", body)
    assert found.verdict is Verdict.NONDETERMINISTIC, found.detail
    diagnosis = diagnosed(found, "stale")
    assert diagnosis["when"] != "in isolation" and diagnosis["findings"][0]["which"] in ("after", "either")


def test_a_transposed_result(judge):
    body = "x = total(tensor).to(tensor.dtype)\nreturn x.t().reshape(x.shape)"
    assert first(judge("001_allreduce", body), "transposed")["dims"] == [0, 1]


def test_rows_that_alternate_between_ranks(judge):
    body = "return torch.stack(everyone(tensor), -1).reshape(2, *tensor.shape)"
    assert first(judge("002_allgather", body), "interleaved")["rank_major"]


def test_right_on_some_ranks_only(judge):
    body = "x = total(tensor).to(tensor.dtype)\nreturn x if dist.get_rank() == 0 else tensor.clone()"
    found = diagnosed(judge("001_allreduce", body), "local", "some ranks")
    assert found["wrong"] == [1]


def test_memory_that_was_never_written(judge):
    body = """
out = torch.empty_like(tensor)
out[: len(tensor) // 2] = total(tensor)[: len(tensor) // 2]
return out
"""
    found = diagnosed(judge("001_allreduce", body), "nan")
    assert found["findings"][0]["origin"] == "unwritten"
    assert found["outputs"]["0"]["where"]["box"] == [[32, 63], [0, 95]]


def test_nan_that_arithmetic_made(judge):
    body = "x = total(tensor)\nx[3] = x[3] * 0 / (x[3] * 0)\nreturn x.to(tensor.dtype)"
    assert first(judge("001_allreduce", body), "nan")["origin"] == "unknown"  # two bytes do not keep the difference


def test_zeros(judge):
    assert first(judge("001_allreduce", "return torch.zeros_like(tensor)"), "zeros")["share"] == 1.0


def test_a_tail_that_is_left_out(judge):
    body = "x = total(tensor).to(tensor.dtype)\nx.view(-1)[-8:] = tensor.reshape(-1)[-8:]\nreturn x"
    where = diagnosed(judge("001_allreduce", body), "local")["outputs"]["0"]["where"]
    assert 4 <= where["tail"] <= 8  # some of the eight may be right by chance


def test_arithmetic_in_too_narrow_a_type(judge):
    body = "return total(tensor.to(torch.float8_e4m3fn).to(tensor.dtype)).to(tensor.dtype)"
    assert 0.01 < first(judge("001_allreduce", body), "rounding")["relative"] < 0.05


def test_where_each_rank_stood_in_a_deadlock(judge):
    found = judge(
        "001_allreduce", "everyone(tensor)\nif dist.get_rank() == 0:\n    shared.handle.wait_signal(1)\nreturn tensor"
    )
    assert found.verdict is Verdict.DEADLOCK
    diagnosis = diagnosed(found, "deadlock")
    waiting, gone = diagnosis["stood"]
    assert (waiting["state"], waiting["text"], waiting["callee"]) == ("inside", "shared.handle.wait_signal(1)", "wait_signal")
    assert gone["state"] == "returned" and diagnosis["findings"][0]["meeting"] == "returned"


def test_ranks_that_wait_at_different_places(judge):
    body = (
        "everyone(tensor)\nif dist.get_rank() == 0:\n    shared.handle.wait_signal(1)\nshared.handle.barrier(5)\nreturn tensor"
    )
    diagnosis = diagnosed(judge("001_allreduce", body), "deadlock")
    assert diagnosis["findings"][0]["meeting"] == "apart"
    assert [s["callee"] for s in diagnosis["stood"]] == ["wait_signal", "barrier"]


def test_parts_in_the_wrong_order_inside_of_a_computation(judge):
    found = judge("012_allgather_gemm", "return torch.cat(everyone(A_local)[::-1], 1) @ B", parameters="A_local, B")
    assert first(found, "order")["how"] == "in reverse"


def test_an_average_in_place_of_a_sum_inside_of_a_computation(judge):
    body = """
x = local_hidden_states.float()
mean = total(x.pow(2).sum(-1, keepdim=True)) / 2 / (x.shape[-1] * 2)
return local_weight * (x * torch.rsqrt(mean + variance_epsilon)).to(local_hidden_states.dtype)
"""
    found = first(judge("018_tp_rms_norm", body, "local_hidden_states, local_weight, variance_epsilon"), "factor")
    assert found["inside"] and found["factor"] == "1/2"


def test_values_of_another_computation_are_no_reordering(judge):
    """Sorted, a thousand numbers of one distribution lie near a thousand others."""
    found = judge("001_allreduce", "torch.manual_seed(0)\nreturn (torch.randn(tensor.shape) * 1.5).to(tensor.dtype)")
    assert found.extra["diagnosis"]["kinds"] == []


def test_a_root_that_is_taken_for_a_constant(judge):
    found = judge("003_broadcast", "return everyone(tensor)[0]", parameters="tensor, src=0")
    diagnosis = diagnosed(found, "local", "other rank")
    assert diagnosis["arguments"] == {"src": 1} and diagnosis["findings"][1]["sources"] == [0]


def test_ranks_that_wait_in_code_of_their_own(judge):
    found = judge("001_allreduce", "seen = everyone(tensor)\nwhile not seen[0].isnan().all():\n    pass\nreturn tensor")
    diagnosis = diagnosed(found, "deadlock")
    assert diagnosis["findings"][0]["meeting"] == "busy" and {s["state"] for s in diagnosis["stood"]} == {"inside"}


def test_where_a_rank_was_when_it_crashed(judge):
    found = judge("001_allreduce", "import ctypes\nif dist.get_rank() == 1:\n    ctypes.string_at(0)\nreturn total(tensor)")
    assert found.verdict is Verdict.RUNTIME_ERROR and "SIGSEGV" in found.detail
    (stood,) = diagnosed(found, "crash")["stood"]
    assert (stood["rank"], stood["text"], stood["callee"]) == (1, "ctypes.string_at(0)", "string_at")


@pytest.fixture(scope="module")
def judge_four():
    with Evaluator(load([*SETTINGS, "ranks=4"])) as evaluator:
        yield lambda body: evaluator.evaluate(Job("001_allreduce", candidate(body), 4, "smoke"))


def test_addends_of_several_ranks_that_are_missing(judge_four):
    found = judge_four("x = everyone(tensor)\nreturn (x[1].float() + x[3].float()).to(tensor.dtype)")
    assert first(found, "term missing")["sources"] == [0, 2]


def test_addends_of_several_ranks_from_the_call_before(judge_four):
    body = """
now = everyone(tensor)
if shared.calls > 1:
    now[2:] = [shared.view(r, tensor, back=1) for r in (2, 3)]
return torch.stack([x.float() for x in now]).sum(0).to(tensor.dtype)
"""
    found = first(judge_four(body), "stale")
    assert (found["which"], found["sources"]) == ("before", [2, 3])


def test_a_wrong_answer_diagnosed_on_three_ranks():
    with Evaluator(load([*SETTINGS, "ranks=3"])) as evaluator:
        body = "x = everyone(tensor)\nreturn (x[0].float() + x[2].float()).to(tensor.dtype)"
        found = evaluator.evaluate(Job("001_allreduce", candidate(body), 3, "smoke"))
    assert first(found, "term missing")["sources"] == [1]
