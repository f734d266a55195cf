"""Which way a candidate moves data between ranks, told from its source and, where there is one, from its binary.

Names in a source are hints, not proof: integrity is judged by what was measured, never by this. A binary settles what it can:
TMA instructions and NVLS loads have opcodes of their own, while a store to a multicast address looks like any other store.

On CPU ranks the same words apply to the same calls: "copy engine" is a ``copy_`` of a peer's buffer, "load/store" is code that
dereferences peers' pointers.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pkb.analyze.peers import peer_uses

#: Version of the rules; stored with every result.
VERSION = 1
#: From the most to the least specific; a candidate's ``primary`` is the first that it uses.
MECHANISMS = ("nvls", "tma", "load/store", "copy engine", "collective", "none")
_KEPT = 3  # pieces of evidence per mechanism
_LONGEST = 200_000  # characters of a source whose data flow is followed; it is written by models, not by people

_SYMM_OPS = {  # torch's own operators over symmetric memory
    r"torch\.ops\.symm_mem\.multimem_\w+": "nvls",
    r"torch\.ops\.symm_mem\.(?:one|two)_shot_\w+": "load/store",
    r"torch\.ops\.symm_mem\._?(?:low_contention|fused)_\w+": "copy engine",
}
_PATTERNS = {
    **_SYMM_OPS,
    r"\bmultimem\s*[.:<_]|\bmulticast_ptr\b|\bcuMulticast\w+": "nvls",
    r"\bcp\.(?:reduce\.)?async\.bulk|\bCUtensorMap\b|\bcuTensorMapEncode\w*|\bcp_(?:reduce_)?async_bulk\w*": "tma",
    r"\bSM90_(?:TMA|BULK)\w*|\btma::|\bmake_tensor_descriptor\b|\b_experimental_(?:descriptor|make_tensor)\w*": "tma",
    r"\bcudaMemcpy(?:3D)?Peer(?:Async)?\b|\bcuMemcpy(?:3D)?Peer(?:Async)?\b|\bcudaMemcpyBatchAsync\b": "copy engine",
    r"\bnccl[A-Z]\w+\s*\(|\b(?:nv)?shmem_?\w*\b|\b_c10d_functional\b": "collective",
}
_COLLECTIVES = (
    "all_reduce|all_gather|all_gather_into_tensor|_all_gather_base|all_gather_coalesced|reduce_scatter|reduce_scatter_tensor|"
    "_reduce_scatter_base|all_to_all|all_to_all_single|broadcast|reduce|gather|scatter|send|recv|isend|irecv|batch_isend_irecv"
)
_KERNEL = re.compile(r"__global__|@(?:triton\.)?jit\b|@cute\.kernel\b")
_PLAIN_COPY = re.compile(r"\bcudaMemcpy(?:2D)?(?:Async)?\s*\(|\bcuMemcpy(?:Dto[DH])?(?:Async)?\s*\(")
_PEER_POINTERS = re.compile(r"\bbuffer_ptrs(?:_dev)?\b")
_BINARY = {
    r"\bLDGMC\b[\w.]*|\bmultimem\.\w+": "nvls",
    r"\bUBLK(?:CP|RED)\b[\w.]*|\bUTMA(?:LDG|STG|REDG)\b[\w.]*|\bcp\.(?:reduce\.)?async\.bulk[\w.]*": "tma",
    r"\b(?:LDG|STG|ST|LD|REDG|RED|ATOMG|ATOM)\.[\w.]*\.SYS\b|\b(?:ld|st|red|atom)\.[\w.]*\bsys\b[\w.]*": "load/store",
}


@dataclass(frozen=True)
class _Line:
    number: int
    text: str


def mechanism(source: str, sass: str | None = None) -> dict[str, Any]:
    """How a candidate moves data: ``{"version", "primary", "used", "evidence"}``, JSON-serialisable.

    source: the candidate's text. sass: SASS or PTX of what was built from it, as ``cuobjdump`` prints them, or None.
    used: the mechanisms seen, in the order of MECHANISMS; primary: the first of them, or "none". evidence: up to three entries
    per mechanism, ``{"mechanism", "where", "text"}`` with where "line 12" of the source or "binary". Never raises on any text.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = _code(source)
    found = [*_named(lines), *_peer_pointers(lines)]
    if len(source) <= _LONGEST:
        found += [_evidence(use.kind, f"line {use.line}", use.text) for use in peer_uses(source, _KEPT)]
    found = list({tuple(e.values()): e for e in found}.values())
    if sass:
        built = list(_in_binary(sass))
        if not any(e["mechanism"] == "tma" for e in built) and "__global__" in source:
            found = [e for e in found if e["mechanism"] != "tma"]  # written, but not compiled in
        talks = any(e["mechanism"] != "none" for e in found)
        found += [e for e in built if e["mechanism"] != "load/store" or talks]
    used = [m for m in MECHANISMS if any(e["mechanism"] == m for e in found)]
    kept = [e for m in used for e in _kept([x for x in found if x["mechanism"] == m])]
    return {"version": VERSION, "primary": used[0] if used else "none", "used": used, "evidence": kept}


def _kept(evidence: list[dict[str, str]]) -> list[dict[str, str]]:
    """The first pieces of evidence for one mechanism, with one from the binary among them if there is any: it weighs most."""
    binary = [e for e in evidence if e["where"] == "binary"]
    source = [e for e in evidence if e["where"] != "binary"][: _KEPT - len(binary[:1])]
    return [*source, *binary][:_KEPT]


def _evidence(kind: str, where: str, text: str) -> dict[str, str]:
    return {"mechanism": kind, "where": where, "text": " ".join(text.split())[:160]}


def _named(lines: list[_Line]) -> Iterator[dict[str, str]]:
    """Calls and instructions that name their mechanism."""
    patterns = {re.compile(p): kind for p, kind in _PATTERNS.items()}
    text = "\n".join(line.text for line in lines)
    modules = {"dist", "torch.distributed", "c10d", "funcol", "distributed"}
    modules |= set(re.findall(r"import torch\.distributed(?:\.\w+)* as (\w+)", text))
    prefix = "|".join(re.escape(m) for m in sorted(modules, key=len, reverse=True))
    patterns[re.compile(rf"\b(?:{prefix})\.(?:{_COLLECTIVES})\s*\(")] = "collective"
    for names in re.findall(r"from torch\.distributed import \(?([\w,\s]+)", text):
        bare = [n for n in re.findall(r"\w+", names) if re.fullmatch(_COLLECTIVES, n)]
        if bare:
            patterns[re.compile(rf"(?<![\w.])(?:{'|'.join(bare)})\s*\(")] = "collective"
    for line in lines:
        for pattern, kind in patterns.items():
            if pattern.search(line.text):
                yield _evidence(kind, f"line {line.number}", line.text)


def _peer_pointers(lines: list[_Line]) -> Iterator[dict[str, str]]:
    """Raw peer pointers: dereferenced by a kernel or by C++, or handed to a plain memcpy where there is no kernel."""
    takes = [line for line in lines if _PEER_POINTERS.search(line.text)]
    if not takes:
        return
    copies = [line for line in lines if _PLAIN_COPY.search(line.text)]
    if copies and not any(_KERNEL.search(line.text) for line in lines):
        yield from (_evidence("copy engine", f"line {line.number}", line.text) for line in copies)
    else:
        yield from (_evidence("load/store", f"line {line.number}", line.text) for line in takes)


def _in_binary(text: str) -> Iterator[dict[str, str]]:
    for pattern, kind in _BINARY.items():
        seen = dict.fromkeys(m[0] for m in re.finditer(pattern, text))
        yield from (_evidence(kind, "binary", name) for name in list(seen)[:_KEPT])


def _code(source: str) -> list[_Line]:
    """The lines of a source without comments and docstrings, neither Python's nor those of C++ in its strings."""
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    pieces: list[str] = []
    done = 0
    for first, last, kind in _prose(source):
        begin, end = starts[first[0] - 1] + first[1], starts[last[0] - 1] + last[1]
        inside = source[begin:end]
        pieces += [source[done:begin], _blank(inside) if kind != "string" else _C_COMMENT.sub(lambda m: _blank(m[0]), inside)]
        done = end
    text = "".join([*pieces, source[done:]])
    return [_Line(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]


_C_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
_C_CODE = re.compile(r"#include|__global__|\basm\b|;\s*$", re.MULTILINE)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _prose(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """Where comments and docstrings stand, and strings that hold C++: (start, end, kind), rows from 1, columns from 0."""
    layout = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    statement = True  # whether a string here would be a statement of its own: a docstring
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start, token.end, "comment"
            elif token.type == tokenize.STRING and statement:
                yield token.start, token.end, "docstring"
            elif token.type not in (tokenize.NL, *layout):
                statement = False
                if _C_CODE.search(token.string):
                    yield token.start, token.end, "string"
            if token.type in layout:
                statement = True
    except (tokenize.TokenError, SyntaxError, ValueError):
        return  # not Python to the end: what was read is enough for a hint
