"""Each way of moving data is recognised where it stands, and nothing is recognised in prose."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb.analyze.mechanism import MECHANISMS, mechanism

HEAD = """
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

def setup(x):
    buf = symm_mem.empty(x.numel(), dtype=x.dtype, device=x.device)
    return buf, symm_mem.rendezvous(buf, dist.group.WORLD)

def solution(x):
    buf, hdl = setup(x)
"""
KERNEL = '''
SRC = r"""
#include <torch/extension.h>
__global__ void gather(const long long* peers, float* out, int n) {
  %s
}
"""
ext = compile_cuda_extension("gather", SRC)
'''


def body(*lines: str) -> str:
    return HEAD + "\n".join(f"    {line}" for line in lines) + "\n"


CASES = {
    "copy of a peer's buffer": (
        "copy engine",
        body("out.copy_(hdl.get_buffer(1, x.shape, x.dtype))"),
    ),
    "slice assignment from a peer": ("copy engine", body("out[1] = hdl.get_buffer(1, x.shape, x.dtype)")),
    "write into a peer through a list": (
        "copy engine",
        body("bufs = [hdl.get_buffer(r, x.shape, x.dtype) for r in range(hdl.world_size)]", "for b in bufs:", "    b.copy_(x)"),
    ),
    "cudaMemcpyPeerAsync": (
        "copy engine",
        KERNEL % "" + "CODE = 'cudaMemcpyPeerAsync(dst, 1, src, 0, n, s);'",
    ),
    "plain memcpy of peer pointers": (
        "copy engine",
        body("lib.pull(out, hdl.buffer_ptrs)") + "\nSRC = 'void pull() { cudaMemcpyAsync(d, s, n, cudaMemcpyDefault, st); }'",
    ),
    "kernel over peer pointers": (
        "load/store",
        KERNEL % "out[0] = ((float*)peers[1])[0];" + body("ext.gather(torch.tensor(hdl.buffer_ptrs), x)"),
    ),
    "triton over peer pointers": ("load/store", "@triton.jit\ndef k(p): tl.load(p)\n" + body("k[(1,)](hdl.buffer_ptrs_dev)")),
    "arithmetic on peers": ("load/store", body("return x + hdl.get_buffer(1, x.shape, x.dtype)")),
    "peer buffer from a helper": (
        "load/store",
        "def peer(hdl, rank, x):\n    return hdl.get_buffer(rank, x.shape, x.dtype)\n"
        + body("return torch.add(x, peer(hdl, 1, x))"),
    ),
    "bulk copy in PTX": ("tma", KERNEL % 'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::);'),
    "multimem in PTX": ("nvls", KERNEL % 'asm("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0}, [%1];");'),
    "torch's multimem operator": ("nvls", body("torch.ops.symm_mem.multimem_all_reduce_(buf, 'sum', 'g')")),
    "c10d collective": ("collective", body("dist.all_reduce(x)", "return x")),
    "collective by its bare name": (
        "collective",
        "from torch.distributed import all_to_all\n" + body("all_to_all(a, b)"),
    ),
    "ncclAllReduce": ("collective", KERNEL % "" + "CALL = 'ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);'"),
    "no communication": ("none", body("return x * dist.get_world_size()")),
    "own buffer only": ("none", body("hdl.get_buffer(hdl.rank, x.shape, x.dtype).copy_(x)", "dist.barrier()")),
}


@pytest.mark.parametrize("case", CASES)
def test_each_way_is_recognised(case: str) -> None:
    wanted, source = CASES[case]
    found = mechanism(source)
    assert found["primary"] == wanted, found
    assert bool(found["evidence"]) == (wanted != "none")


def test_evidence_points_to_the_line() -> None:
    source = body("y = x", "y.copy_(hdl.get_buffer(1, x.shape, x.dtype))")
    (evidence,) = mechanism(source)["evidence"]
    number = int(evidence["where"].removeprefix("line "))
    assert source.split("\n")[number - 1].strip() == evidence["text"]


def test_prose_is_no_evidence() -> None:
    source = (
        '"""Uses multimem.red and dist.all_reduce(x)."""\n# cudaMemcpyPeerAsync\n'
        + KERNEL % "// cp.async.bulk\n /* multimem. */"
    )
    assert mechanism(source)["primary"] == "none"


def test_floor_division_is_no_comment() -> None:
    source = KERNEL % "" + body("n = x.numel() // 2; dist.all_reduce(x)")
    assert mechanism(source)["primary"] == "collective"


SASS = """
        Function : gather
        /*0020*/    {line}
        /*0070*/    EXIT ;
"""


@pytest.mark.parametrize(
    ("line", "wanted"),
    [  # as cuobjdump 12.8 prints multimem.ld_reduce, cp.async.bulk and cp.async.bulk.tensor for sm_90a
        ("LDGMC.E.ADD.F32x4.RN.STRONG.SYS R4, [RZ.U32+UR4] ;", "nvls"),
        ("UBLKCP.S.G [UR4], [UR6], UR8 ;", "tma"),
        ("UTMALDG.2D [UR4], [UR6] ;", "tma"),
    ],
)
def test_the_binary_adds_what_the_source_hides(line: str, wanted: str) -> None:
    source = CASES["kernel over peer pointers"][1]
    found = mechanism(source, SASS.format(line=line))
    assert found["primary"] == wanted
    assert found["used"] == [wanted, "load/store"]
    assert {"mechanism": wanted, "where": "binary", "text": line.split()[0]} in found["evidence"]


def test_tma_that_was_not_compiled_in_is_dropped() -> None:
    source = KERNEL % '#if 0\n asm("cp.async.bulk.global.shared::cta [%0], [%1], %2;");\n#endif' + body(
        "ext.gather(hdl.buffer_ptrs, x)"
    )
    assert mechanism(source)["primary"] == "tma"
    assert mechanism(source, SASS.format(line="LDG.E.STRONG.SYS R7, desc[UR4][R2.64] ;"))["primary"] == "load/store"


def test_system_scope_alone_is_not_communication() -> None:
    assert mechanism(KERNEL % "", SASS.format(line="LDG.E.STRONG.SYS R7, desc[UR4][R2.64] ;"))["primary"] == "none"


@given(st.text(alphabet=st.sampled_from(list("abx._()[]'\"#\n\r \\{}=,:/*@0"))), st.text(max_size=30))
def test_any_text_gives_an_answer(source: str, sass: str) -> None:
    found = mechanism(source, sass)
    assert found["primary"] in MECHANISMS
    json.dumps(found)


def test_nesting_beyond_the_parser_gives_an_answer() -> None:
    assert mechanism("x = " + "(" * 5000 + ")" * 5000)["primary"] == "none"
    assert mechanism("x = " + "-" * 20000 + "1")["primary"] == "none"


def test_a_huge_source_takes_no_longer_than_reading_it() -> None:
    """Models repeat themselves until the token limit; the evaluator must not wait for that."""
    chain = "".join(f"a{i} = a{i + 1}.view(-1)\n" for i in range(2000)) + "a2000 = hdl.get_buffer(1, s, d)\n"
    for source in (
        "# x\n" * 50_000,
        "x = hdl.get_buffer(1, s, d)\n" + "x.copy_(y)\n" * 5_000,
        chain,
        "dist.all_reduce(x)\n" * 10_000,
    ):
        begin = time.perf_counter()
        mechanism(source)
        assert time.perf_counter() - begin < 10


def test_evidence_from_the_binary_is_kept_beside_the_source() -> None:
    lines = [f'asm volatile("multimem.ld_reduce.{i}");' for i in range(5)]
    found = mechanism(KERNEL % "\n".join(lines), "LDGMC.E.ADD.F32x4.RN.STRONG.SYS")
    assert [e["where"] for e in found["evidence"]] == ["line 5", "line 6", "binary"]
