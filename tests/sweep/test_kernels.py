"""Folders of existing kernels: which file is for which problem, and what becomes of a folder."""

import polars as pl
import pytest

from pkb import problem
from pkb.errors import UserError
from pkb.store import reader
from pkb.sweep import kernels
from pkb.sweep.kernel_names import match

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


def test_a_folder_becomes_a_run(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("1_allreduce_cuda.py", "1_allreduce_cuda_v2.py", "55_ring_attention_cuda.py", "3_nothing_of_the_kind.py"):
        (folder / name).write_text(f"# {name}\ndef solution(tensor): ...\n")
    (folder / "notes.md").write_text("no kernel")
    found = kernels.import_folder(folder, "by-hand", tmp_path / "run")
    assert (found.files, found.problems) == (3, 2)
    assert [name for name, _ in found.skipped] == ["3_nothing_of_the_kind.py"]
    rows = reader.scan(tmp_path / "run", "generations").filter(pl.col("status") == "ok").sort("problem", "attempt").collect()
    assert rows["problem"].to_list() == ["001_allreduce", "001_allreduce", "054_ring_attention"]
    assert rows["source"][1].startswith("# 1_allreduce_cuda_v2.py")


def test_a_folder_without_any_kernel_is_refused(tmp_path):
    (tmp_path / "3_nothing_of_the_kind.py").write_text("")
    with pytest.raises(UserError, match="no problem is called 'nothing_of_the_kind'"):
        kernels.import_folder(tmp_path, "m", tmp_path / "run")
    with pytest.raises(UserError, match="no folder"):
        kernels.import_folder(tmp_path / "none", "m", tmp_path / "run")
