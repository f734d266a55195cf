"""Extensions on candidate ranks: those that no build could find ahead are built there, once, and loaded on every rank."""

from __future__ import annotations

import pytest

from pkb.evaluate.build import extensions_in
from pkb.evaluate.extension import Extension, cuda_extension
from pkb.evaluate.sandbox import Policy
from pkb.verdict import Verdict

#: The source depends on a value that only running the module can give, as code generators' sources do.
DYNAMIC = '''
import os, torch, torch.distributed as dist
from torch.utils.cpp_extension import load_inline
from pkb import symm
TEXT = """
#include <pybind11/pybind11.h>
#include <cstdint>
void add(int64_t to, int64_t from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) reinterpret_cast<float*>(to)[i] += reinterpret_cast<const float*>(from)[i];
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); }
"""
_kept = {}
def solution(tensor):
    if not _kept:
        source = "".join(line + chr(10) for line in TEXT.splitlines() if os.sep)
        _kept["ext"] = load_inline("summing", [source], no_implicit_headers=True)
    n = tensor.numel()
    if n not in _kept:
        buffer = symm.empty(max(n, 1), dtype=tensor.dtype, device="cpu")
        _kept[n] = buffer, symm.rendezvous(buffer, dist.group.WORLD)
    buffer, handle = _kept[n]
    buffer[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = torch.zeros_like(tensor)
    for pointer in handle.buffer_ptrs:
        _kept["ext"].add(out.data_ptr(), pointer, n)
    handle.barrier()
    return out
'''


@pytest.mark.slow
def test_an_extension_whose_source_is_computed_is_built_on_the_ranks(node):
    assert extensions_in(DYNAMIC) == []
    found = node.judge(DYNAMIC, 1, "dtype=float32", "evaluation.limits.build_seconds=120")
    assert found.verdict is Verdict.CORRECT, found.detail


@pytest.mark.slow
def test_an_extension_in_files_that_the_candidate_wrote_is_built_once_for_all_ranks(node):
    inline = '_kept["ext"] = load_inline("summing", [source], no_implicit_headers=True)'
    assert inline in DYNAMIC
    from_files = """open("summing.cpp", "w").write(source)
        _kept["ext"] = load("summing", ["summing.cpp"], build_directory=os.getcwd())
        where = os.path.dirname(os.path.dirname(_kept["ext"].__file__))
        assert len(os.listdir(where)) == 2, "one folder and one lock for all ranks"
    """
    source = DYNAMIC.replace(inline, from_files).replace("import load_inline", "import load")
    found = node.judge(source, 1, "dtype=float32", "evaluation.limits.build_seconds=120")
    assert found.verdict is Verdict.CORRECT, found.detail


def test_a_file_that_does_not_compile_is_a_compile_error(node):
    source = """
from torch.utils.cpp_extension import load
def solution(tensor):
    open("broken.cpp", "w").write("int f() { return no_such_name; }")
    return load("broken", "broken.cpp").f(tensor)
"""
    found = node.judge(source)
    assert found.verdict is Verdict.COMPILE_ERROR and "no_such_name" in found.detail, found.detail


def test_what_was_built_is_found_by_ranks_that_have_another_toolchain_or_none():
    here = cuda_extension("sum", "int f();")
    there = Extension(**{f: getattr(here, f) for f in here.__dataclass_fields__})
    assert here.identity() == there.identity() != cuda_extension("sum", "int g();").identity()
    assert here.identity() != here.key()


def test_ranks_on_gpus_share_the_folder_in_which_symmetric_memory_meets():
    policy = Policy(scratch="/scratch", gpu=True)
    assert policy.temporary(0) == policy.temporary(1) != policy.home(0)
    apart = Policy(scratch="/scratch")
    assert apart.temporary(0) == apart.home(0) != apart.temporary(1)
