"""What a model is told about its answer: the fault by name and place, or the time and where it goes.

The words are in ``conf/prompts/feedback/*.yaml``, the facts all come from the evaluation: of expected values only the first differing
one that the verdict's detail shows, never a seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pkb.hardware import Hardware
from pkb.records import Evaluation
from pkb.refine import excerpts
from pkb.refine.timing import timing_parts
from pkb.refine.words import say
from pkb.verdict import Verdict

LOG_CHARACTERS = 1500
#: Of many misplaced blocks the first show the pattern.
MOST_MOVED = 4
#: Verdicts whose rank said something before it ended that may help.
_SPOKEN = (Verdict.RUNTIME_ERROR, Verdict.LOAD_ERROR, Verdict.OUT_OF_MEMORY, Verdict.DEADLOCK)


@dataclass(frozen=True)
class Standing:
    """Where an attempt stands. best: its best turn so far and how fast that is, in words; repeats: the turn that had the same answer."""

    best: tuple[int, str] | None = None
    repeats: int | None = None


def text(
    evaluation: Evaluation, source: str | None, machine: Hardware, standing: Standing | None = None, file: str = ""
) -> str:
    """The feedback on one answer; ``source`` is its candidate, None where it had none. machine: as the task describes it.

    file: where the next version goes; empty in a conversation, where it is the next reply.
    """
    standing = standing or Standing()
    parts = list(_parts(evaluation, source or "", machine, standing))
    if standing.best is not None:
        turn, speed = standing.best
        parts.append(say("parts", "best", turn=turn, speed=speed))
    told_values = evaluation.verdict in (Verdict.MISMATCH, Verdict.NONDETERMINISTIC)
    what = "faster" if evaluation.verdict is Verdict.CORRECT else "next_values" if told_values else "next"
    parts.append(say("parts", what))
    parts[-1] += " " + (say("parts", "edit", name=file) if file else say("parts", "reply"))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _parts(evaluation: Evaluation, source: str, machine: Hardware, standing: Standing) -> Iterator[str]:
    if standing.repeats is not None:
        yield say("parts", "repeated", turn=standing.repeats)
    yield say("verdicts", evaluation.verdict.value, detail=evaluation.detail.strip())
    if evaluation.verdict is Verdict.COMPILE_ERROR:
        yield from _compiler(evaluation, source)
    if evaluation.verdict is Verdict.FORBIDDEN and (lines := excerpts.calls_of(evaluation.detail, source)):
        yield say("parts", "calls", excerpt=excerpts.excerpt(source, lines))
    trace = [p.line for p in excerpts.traceback_lines(str(evaluation.extra.get("traceback", "")), source) if p.line]
    if evaluation.verdict is Verdict.LOAD_ERROR:
        yield from _undefined(evaluation.detail, source)
        trace = trace or excerpts.syntax_line(evaluation.detail)
    if trace:
        yield say("parts", "traceback", excerpt=excerpts.excerpt(source, trace))
    diagnosis = evaluation.extra.get("diagnosis")
    if isinstance(diagnosis, Mapping):
        yield from _diagnosis(diagnosis, source)
    log = printed(str(evaluation.extra.get("log", "")))
    if log and evaluation.verdict in _SPOKEN:
        yield say("parts", "log", log=log)
    if evaluation.verdict is Verdict.CORRECT:
        yield from timing_parts(evaluation, source, machine)


def _compiler(evaluation: Evaluation, source: str) -> Iterator[str]:
    errors = excerpts.compiler_errors(evaluation.build_log, source)
    marked = [p.line for p in errors if p.line]
    if not marked:
        yield say("parts", "compiler_log", log=(evaluation.build_log or evaluation.detail)[:LOG_CHARACTERS])
        return
    said = [f"- line {p.line}: {p.message}" if p.line else f"- {p.message}: `{p.text}`" for p in errors]
    yield say("parts", "compiler", errors="\n".join(said), excerpt=excerpts.excerpt(source, marked))


def _undefined(detail: str, source: str) -> Iterator[str]:
    """The loader's complaint about a C++ function without a body, in the candidate's own words."""
    name = excerpts.undefined_symbol(detail)
    if name and (lines := [n for n, line in enumerate(source.split("\n"), 1) if re.search(rf"\b{name}\b", line)]):
        yield say("parts", "undefined", name=name, excerpt=excerpts.excerpt(source, lines[:6]))


def _diagnosis(diagnosis: Mapping[str, Any], source: str) -> Iterator[str]:
    outputs: Mapping[str, Any] = diagnosis.get("outputs", {})
    if outputs:
        rank, place = next(iter(outputs.items()))
        if "where" in place:
            yield say("parts", "where", rank=rank, output=place["output"], **_where(place["where"]))
    for alike in _groups(diagnosis.get("findings", ())):
        yield _finding(alike[0], outputs) + _likewise(alike[1:])
    if "stood" in diagnosis:
        yield say("parts", "stood", stood="\n".join(_stand(s) for s in diagnosis["stood"]))
        lines = [s["line"] for s in diagnosis["stood"] if "line" in s]
        if lines:
            yield f"```\n{excerpts.excerpt(source, lines)}\n```"
    when = str(diagnosis.get("when", "in isolation"))
    if when == "when repeated":
        yield say("parts", "when_repeated")
    elif when != "in isolation":
        yield say("parts", "when", when="that were timed, back to back" if when == "timed" else when)
    elif diagnosis.get("variant", "plain") != "plain":
        yield say("parts", "variant", variant=say("parts", str(diagnosis["variant"])).strip())
    if diagnosis.get("arguments"):
        yield say("parts", "arguments", arguments=", ".join(f"`{k}={v}`" for k, v in diagnosis["arguments"].items()))


def _groups(findings: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Findings that differ from rank to rank only in whose data or which block it was, together."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        common = {k: v for k, v in finding.items() if k not in ("ranks", "share", "sources", "moved")}
        groups.setdefault(repr(common), []).append(finding)
    return list(groups.values())


def _likewise(others: Sequence[Mapping[str, Any]]) -> str:
    said = [
        ranks_text(f["ranks"]) + (f" with {ranks_text(f['sources'])} in that place" if "sources" in f else "") for f in others
    ]
    return f" The same holds on {'; on '.join(said)}." if said else ""


def _finding(finding: Mapping[str, Any], outputs: Mapping[str, Any]) -> str:
    kind = str(finding["kind"])
    ranks = finding.get("ranks", [])
    sub = finding.get("origin") or finding.get("which") or finding.get("meeting")
    if finding.get("inside"):
        sub = "inside"
    if kind == "interleaved":
        sub = "rank_major" if finding.get("rank_major") else "element_major"
    output = next((o["output"] for r, o in outputs.items() if int(r) in ranks and "output" in o), "output")
    values = {
        **finding,
        "on": ranks_text(ranks),
        "part": "all" if finding.get("share", 1.0) > 0.99 else f"{finding['share']:.0%}",
        "output": output,
        "sources": ranks_text(finding["sources"]) if finding.get("sources") else "",
        "from": f", from {ranks_text(finding['sources'])}" if finding.get("sources") else "",
        "dims": " and ".join(map(str, finding.get("dims", []))),
        "moved": _all_moved(finding.get("moved", [])),
        "relative": f"{finding.get('relative', 0.0):.1%}",
    }
    return say("findings", f"{kind}/{sub}" if sub else kind, **values)


def _all_moved(moved: Sequence[Mapping[str, Any]]) -> str:
    said = "; ".join(_moved(m) for m in moved[:MOST_MOVED])
    return said if len(moved) <= MOST_MOVED else f"{said}; and so on for {len(moved) - MOST_MOVED} more"


def _moved(m: Mapping[str, Any]) -> str:
    def place(p: Mapping[str, Any]) -> str:
        block = f"block {p['block']} of " if "block" in p else ""
        return f"{block}rank {p['rank']}'s {p['of']}"

    return f"block {m['block']} holds {place(m['holds'])}, where {place(m['belongs'])} belongs"


def _where(where: Mapping[str, Any]) -> dict[str, str]:
    more = ""
    if "tail" in where:
        more = f": only the last {where['tail']} elements"
    elif "blocks" in where:
        blocks = where["blocks"]
        of = "all but this rank's own" if blocks["own_right"] else ", ".join(map(str, blocks["wrong"]))
        more = f"; of the blocks of dimension {blocks['dim']}, one per rank, wrong are: {of}"
    box = "[" + ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in where["box"]) + "]"
    share = "all" if where["share"] > 0.9995 else f"{where['share']:.1%}"
    return {"share": share, "box": box, "shape": str(where["shape"]), "more": more}


def _stand(s: Mapping[str, Any]) -> str:
    states = {
        "returned": "its call had returned",
        "device": "its Python code had returned; something that it launched on the device never ends",
        "unknown": "in code that shows no Python lines",
    }
    if s["state"] != "inside":
        kernels = f"; its kernels are {', '.join(f'`{k}`' for k in s['kernels'])}" if s.get("kernels") else ""
        return f"- rank {s['rank']}: {states[s['state']]}{kernels}"
    inside = f", inside `{s['callee']}`" if s["callee"] else ""
    return f"- rank {s['rank']}: line {s['line']} of `{s['function']}`{inside}: `{s['text']}`"


def printed(log: str) -> str:
    """The end of what candidates printed, without the libraries' own warnings."""
    lines = [line for line in log.splitlines() if not re.match(r"\[[WI]\d{4} ", line)]
    return "\n".join(lines).strip()[-LOG_CHARACTERS:]


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
