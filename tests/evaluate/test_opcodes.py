"""What the disassembler's text is reduced to; the disassembler itself is a stand-in that prints what cuobjdump 12.8 prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pkb.analyze.mechanism import mechanism
from pkb.evaluate.opcodes import opcodes_of

SASS = r"""
        code for sm_90a
                Function : gather
        .headerflags    @"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                          /* 0x00000a00ff017b82 */
        /*0020*/                   LDGMC.E.ADD.F32x4.RN.STRONG.SYS R4, [RZ.U32+UR4] ;
        /*0120*/               @P0 REDG.E.ADD.STRONG.SYS desc[UR4][R4.64], R13 ;
        /*0130*/              @!P1 BRA.U.ANY 0x90 ;
        /*0140*/                   LDC R2, c[0x0][0x28] ;
"""


def test_distinct_opcodes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{SASS}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = opcodes_of(tmp_path / "library.so")
    assert found.split("\n") == ["BRA.U.ANY", "LDC", "LDGMC.E.ADD.F32x4.RN.STRONG.SYS", "REDG.E.ADD.STRONG.SYS"]
    assert mechanism("def solution(x): ...", found)["primary"] == "nvls"


def test_without_a_disassembler_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert opcodes_of(tmp_path / "library.so") == ""


def test_a_disassembler_that_fails_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text("#!/bin/sh\nexit 255\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert opcodes_of(tmp_path / "library.so") == ""


def test_the_disassembler_of_triton_serves_where_cuda_brings_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"
    tool.parent.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{SASS}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    real = shutil.which
    monkeypatch.setattr("shutil.which", lambda name: real(name) if str(tmp_path) in name else None)
    assert "LDGMC.E.ADD.F32x4.RN.STRONG.SYS" in opcodes_of(tmp_path / "library.so")
