"""One node judging one candidate after another: what it keeps, what it replaces, what it refuses."""

import dataclasses
import os
import signal
import textwrap
from concurrent.futures import Future

import pytest

from pkb import config, problem
from pkb.errors import HarnessError, UserError
from pkb.evaluate import node as nodes
from pkb.evaluate.node import Evaluator
from pkb.evaluate.ranks import RankGroup
from pkb.records import Job
from pkb.verdict import Verdict
from tests.evaluate.conftest import QUICK, Node, descendants

ZEROS = "import torch\ndef solution(tensor): return torch.zeros_like(tensor)"


def test_reference_ranks_persist_and_answers_are_computed_once_per_problem(node, allreduce, reference, monkeypatch):
    """The second candidate of a problem costs the reference ranks no reference call before timing, whatever came between."""
    node.judge(allreduce)
    ranks, replies, ask = node.reference_ranks(), [], RankGroup.ask

    def noting(group, *args, **command):
        found = ask(group, *args, **command)
        if command.get("do") == "expect":
            replies.append([r["hit"] for r in found])
        return found

    monkeypatch.setattr(RankGroup, "ask", noting)
    node.judge(ZEROS)
    node.judge(reference(34), 34)
    node.judge(allreduce)
    assert node.reference_ranks() == ranks
    assert replies[:3] == [[True, True]] * 3 and replies[-3:] == [[True, True]] * 3
    assert replies[3:6] == [[False, False]] * 3, "another problem has answers of its own"


def test_each_candidate_has_ranks_of_its_own_that_were_started_ahead(node, allreduce):
    source = textwrap.dedent(
        """
        import os
        def solution(tensor):
            assert not hasattr(os, "mark"), "someone was here before"
            os.mark = True
            raise ValueError("first")
        """
    )
    node.judge(allreduce)
    spare = node.evaluator._spare.result()
    assert "first" in node.judge(source).detail
    assert node.candidate is spare and spare.ended
    assert "first" in node.judge(source).detail


def test_a_spare_group_that_could_not_start_is_no_fault_of_the_next_candidate(node, allreduce):
    node.judge(allreduce)
    node.evaluator._spare.result().kill()
    failed: Future = Future()
    failed.set_exception(HarnessError("candidate ranks did not meet: CUDA out of memory"))
    node.evaluator._spare = failed
    assert node.judge(allreduce).verdict is Verdict.CORRECT
    assert node.left_behind() == []


def test_ranks_that_do_not_meet_are_ended(node, allreduce, monkeypatch):
    node.judge(allreduce)
    node.evaluator._spare.result()
    before = descendants(node.zygote)
    monkeypatch.setattr(RankGroup, "meet", lambda group: (_ for _ in ()).throw(HarnessError("no room")))
    with pytest.raises(HarnessError, match="no room"):
        node.evaluator._start_candidate()
    assert sorted(descendants(node.zygote)) == sorted(before)


def test_a_candidate_finds_nothing_in_its_environment_that_is_not_its_own(node, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    source = "import os\ndef solution(tensor): raise ValueError(sorted(os.environ))"
    found = node.judge(source)
    assert "OPENAI_API_KEY" not in found.detail and "HOME" in found.detail
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        said = node.judge(f"import os\ndef solution(tensor): raise ValueError(os.environ[{name!r}])").detail
        assert str(node.evaluator.root) in said, "every cache lies in the candidate's own scratch"


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_one_rank_is_refused():
    with pytest.raises(UserError, match="at least 2 ranks; set ranks=2"):
        config.load(["ranks=1"])
    with pytest.raises(UserError, match="at least 2 ranks"):
        problem.load(1).shape(1, "smoke")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"preset": "huge"}, "no size 'huge'; known sizes: smoke"),
        ({"dims": {"no_such": 3}}, "no dimension 'no_such'"),
        ({"world_size": 4}, "this evaluator has 2 ranks, the job asks for 4"),
    ],
)
def test_an_inadmissible_job_is_the_users_fault(node, allreduce, job, said):
    wanted = Job(problem.resolve(1), allreduce, 2, "smoke")
    with pytest.raises(UserError, match=said) as error:
        node.evaluator.evaluate(dataclasses.replace(wanted, **job))
    assert "\n" not in str(error.value)


def test_isolation_that_the_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(nodes.sandbox, "available", lambda: "process")
    with pytest.raises(UserError, match=r"sandbox.require=namespaces: this machine offers only 'process'"):
        Evaluator(config.load(["sandbox.require=namespaces"]))


def test_more_ranks_than_gpus_must_be_asked_for(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"ranks=2 but 1 GPU here; set evaluation.share_device=true"):
        Evaluator(config.load(["device=cuda"]))
    shared = config.load(["device=cuda", "ranks=3", "evaluation.share_device=true"])
    assert nodes._devices(shared, [4, 6]) == ([4, 6, 4], True)
    assert nodes._devices(config.load(["device=cuda"]), [5, 7, 1]) == ([5, 7], False)


def test_no_gpu_at_all_is_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="no GPU is visible here; use device=cpu"):
        Evaluator(config.load(["device=cuda"]))


# -- health ------------------------------------------------------------------------------------------------------------


def test_a_well_node_is_well(node):
    assert node.evaluator.health() is None


def test_a_canary_that_takes_far_longer_than_usual_is_reported(node, allreduce, monkeypatch):
    node.judge(allreduce)
    monkeypatch.setattr(node.evaluator, "_usual", 1e-9)
    monkeypatch.setitem(nodes.SLOW_SECONDS, "cpu", 0.0)
    assert "usually" in node.evaluator.health()


def test_on_a_sick_node_no_candidate_is_blamed(node, allreduce, monkeypatch):
    """A crash is believed only if the reference ranks are well afterwards."""
    node.judge(allreduce)
    crash = "import os\ndef solution(tensor): os.abort()"
    assert node.judge(crash).verdict is Verdict.RUNTIME_ERROR
    monkeypatch.setattr(node.evaluator, "_usual", 1e-9)
    monkeypatch.setitem(nodes.SLOW_SECONDS, "cpu", 0.0)
    with pytest.raises(HarnessError, match="canary: a call takes"):
        node.judge(crash)
    assert node.judge(ZEROS).verdict is Verdict.MISMATCH, "wrong values are no sign of a broken machine"


def test_memory_that_does_not_come_free_makes_the_node_sick_until_it_does(node, allreduce, monkeypatch):
    """As seen from the reference ranks; a verdict that was reached before stands."""
    free = {"cuda:0": 100 << 30}
    monkeypatch.setattr(node.evaluator, "_free_memory", lambda: dict(free))
    monkeypatch.setattr(nodes, "FREE_SECONDS", 0.1)
    take = node.evaluator._take_candidate

    def leaking():
        group = take()
        free["cuda:0"] = 90 << 30
        return group

    monkeypatch.setattr(node.evaluator, "_take_candidate", leaking)
    assert node.judge(allreduce).verdict is Verdict.CORRECT
    assert node.evaluator.health() == ("device memory of an ended candidate did not come free within 0.1 s: 10.0 GiB on cuda:0")
    with pytest.raises(HarnessError, match="did not come free"):
        node.judge(allreduce)
    free["cuda:0"] = 100 << 30
    monkeypatch.setattr(node.evaluator, "_take_candidate", take)
    assert node.evaluator.health() is None
    assert node.judge(allreduce).verdict is Verdict.CORRECT


def test_a_reference_that_needs_too_long_says_what_to_do(node, allreduce, reference):
    node.judge(allreduce)
    for pid in node.reference_ranks():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(HarnessError) as error:
        node.judge(allreduce, 1, "evaluation.limits.timing_seconds=0.1")
    said = str(error.value)
    assert "no answer from rank 0, 1 within 0.5 s" in said and "001_allreduce at size smoke" in said
    assert said.endswith("raise evaluation.limits.timing_seconds") and "\n" not in said
    assert node.judge(allreduce).verdict is Verdict.CORRECT


# -- other worlds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [3, 4])
def test_other_world_sizes_work_the_same(tmp_path, allreduce, ranks):
    other = Node(f"ranks={ranks}", f"evaluation.cache_dir={tmp_path}")
    with other.evaluator:
        found = other.judge(allreduce)
        assert (found.verdict, found.world_size) == (Verdict.CORRECT, ranks), found.detail
        wrong = "import torch.distributed as dist\ndef solution(tensor):\n    out = tensor.clone()\n"
        wrong += "    dist.all_reduce(out)\n    return out + (dist.get_rank() == dist.get_world_size() - 1)"
        assert f"wrong on rank {ranks - 1} only" in other.judge(wrong).detail
        assert other.left_behind() == []


def test_a_closed_evaluator_leaves_nothing(tmp_path, allreduce, monkeypatch):
    from tests.evaluate.conftest import descendants

    before = set(descendants(os.getpid()))
    with Evaluator(config.load([*QUICK, f"evaluation.cache_dir={tmp_path}"])) as evaluator:
        evaluator.evaluate(Job(problem.resolve(1), allreduce, 2, "smoke"))
        root = evaluator.root
        assert root.is_dir() and set(descendants(os.getpid())) - before
    assert not root.exists() and not set(descendants(os.getpid())) - before
