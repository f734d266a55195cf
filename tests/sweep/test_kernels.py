"""Folders of existing kernels: which file is for which problem, and what becomes of a folder."""

import pytest

from pkb import problem
from pkb.errors import UserError
from pkb.records import Job
from pkb.store import reader
from pkb.store import run as runs
from pkb.store.rows import evaluation_row, key_of
from pkb.store.writer import RunStore
from pkb.sweep import kernels, status
from pkb.sweep import plan as plans
from pkb.sweep.kernel_names import match
from tests.sweep import stubs

NAMES = [
    ("1_allreduce_cuda.py", "001_allreduce"),
    ("001_allreduce.py", "001_allreduce"),
    ("01_allreduce_triton_v2.py", "001_allreduce"),
    ("allreduce_cuda.py", "001_allreduce"),
    ("55_ring_attention_cuda.py", "054_ring_attention"),  # an older edition's number
    ("54_ring_attention_tp_cuda.py", "055_ring_attention_tp"),
    ("12_gemm_allgather_cuda.py", "012_allgather_gemm"),
    ("14_gemm_allgather_cuda.py", "014_gemm_allgather"),
    ("gemm_allgather.py", "014_gemm_allgather"),
    ("11_gemm_allgather_AT_cuda.py", "011_allgather_gemm_AT"),
    ("99_gemm_allscatter_parallelkittens.py", "014_gemm_allgather"),
    ("18_rms_norm_cuda.py", "018_tp_rms_norm"),
    ("11_allgather_gemm_at_cuda.py", "011_allgather_gemm_AT"),
    ("7.py", "007_reducescatter"),
]


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_file_name(file, name):
    assert match(file).problem == name


@pytest.mark.parametrize("name", problem.names())
@pytest.mark.parametrize("suffix", ["", "_cuda", "_triton", "_parallelkittens", "_cuda_v3"])
def test_every_problem_is_found_by_its_own_name(name, suffix):
    assert match(f"{int(name[:3])}_{name[4:]}{suffix}.py").problem == name


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("3_brodcast_cuda.py", "the nearest is 003_broadcast"),
        ("1_quantum_teleport_cuda.py", "no problem is called 'quantum_teleport'"),
        ("99.py", "there is no problem 99"),
        ("read-me.py", "not named like"),
    ],
)
def test_a_file_that_fits_no_problem_has_a_reason(file, reason):
    found = match(file)
    assert found.problem is None and reason in found.reason


@pytest.mark.parametrize("text", ["54", "054", "ring_attention", "054_ring_attention", "54_ring_attention"])
def test_a_problem_goes_by_number_name_or_both(text):
    assert problem.resolve(text) == "054_ring_attention"


@pytest.mark.parametrize(("text", "said"), [("55_ring_attention", "055_ring_attention_tp"), ("12_gemm_allgather", "014_gemm")])
def test_a_number_and_a_name_of_different_problems_are_ambiguous(text, said):
    with pytest.raises(UserError, match=f"ambiguous.*{said}"):
        problem.resolve(text)


def test_a_folder_becomes_a_run(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("1_allreduce_cuda.py", "1_allreduce_cuda_v2.py", "55_ring_attention_cuda.py", "3_nothing_of_the_kind.py"):
        (folder / name).write_text(f"# {name}\ndef solution(tensor): ...\n")
    (folder / "notes.md").write_text("no kernel")
    (folder / "2_allgather_cuda.py").write_bytes(b"\xff\xfe")
    found = kernels.import_folder(folder, "by-hand", tmp_path / "run")
    assert (found.files, found.problems) == (3, 2)
    assert [name for name, _ in found.skipped] == ["2_allgather_cuda.py", "3_nothing_of_the_kind.py"]
    assert found.skipped[0][1] == "not UTF-8 text"
    rows = reader.scan(tmp_path / "run", "generations").sort("problem", "attempt").collect()
    assert rows["problem"].to_list() == ["001_allreduce", "001_allreduce", "054_ring_attention"]
    assert rows["source"][1].startswith("# 1_allreduce_cuda_v2.py")


def test_a_kernel_that_is_not_there_is_no_failure_and_nothing_to_wait_for(tmp_path):
    """Two kernels for one problem, one for another: three attempts, and the run is complete when they are judged."""
    folder, run = tmp_path / "kernels", tmp_path / "run"
    folder.mkdir()
    for name in ("1_allreduce_cuda.py", "1_allreduce_cuda_v2.py", "2_allgather_cuda.py"):
        (folder / name).write_text("def solution(tensor): ...\n")
    kernels.import_folder(folder, "by-hand", run)
    problems = runs.read(run)["problems"]
    plan = plans.make(run, "run", ["by-hand"], problems, 2, imported=["by-hand"])
    assert not plan.may_ask("by-hand") and len(list(plans.unfinished(run, plan))) == 3
    assert status.read(run)["total"] == 3 and not status.read(run)["complete"]
    with RunStore(run) as store:
        for row in reader.scan(run, "generations").collect().to_dicts():
            job = Job(row["problem"], row["source"], 2, "smoke")
            store.append("evaluations", [evaluation_row(key_of(row), stubs.evaluation(job))])
    assert plans.make(run, "run", ["by-hand"], problems, 2, imported=["by-hand"]).judged.all()
    assert status.read(run)["complete"]


def test_a_folder_without_any_kernel_is_refused(tmp_path):
    (tmp_path / "3_nothing_of_the_kind.py").write_text("")
    with pytest.raises(UserError, match="no problem is called 'nothing_of_the_kind'"):
        kernels.import_folder(tmp_path, "m", tmp_path / "run")
    with pytest.raises(UserError, match="no folder"):
        kernels.import_folder(tmp_path / "none", "m", tmp_path / "run")
