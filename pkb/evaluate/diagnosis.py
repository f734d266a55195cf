"""What ``Evaluation.extra["diagnosis"]`` holds: the ranks' findings put together, or where ranks stood when they stopped.

``kinds`` names what was found, most telling first; ``findings`` gives each with its parameters. No seed is in it, and of the expected
values nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pkb.evaluate.profiling import kernels_in

#: Version of the form, stored with every diagnosis.
VERSION = 2
_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+) in (\S+)', re.MULTILINE)
_CANDIDATE = re.compile(r"/rank\d+/candidate\.py$")
_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+.*$", re.MULTILINE)


def of_values(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The diagnosis of wrong values from every rank's account (``diagnose.of_rank``), by rank.

    findings: each with the ``ranks`` that it was found on and the largest ``share`` of the wrong elements that it accounts for.
    wrong: the ranks whose answer was wrong; that the others were right is a finding too. outputs: by rank, which output is wrong
    and where. arguments: the numbers among the call's arguments, by name.
    """
    wrong = [r for r, f in enumerate(found) if not f["right"]]
    merged: list[dict[str, Any]] = []
    for r in wrong:
        for finding in found[r].get("findings", []):
            alike = next((m for m in merged if _nameless(m) == _nameless(finding)), None)
            if alike is None:
                merged.append({**finding, "ranks": [r]})
            else:
                alike["ranks"].append(r)
                alike["share"] = max(alike["share"], finding["share"])
    merged.sort(key=lambda m: -len(m["ranks"]) * m["share"])
    if wrong and len(wrong) < len(found):
        merged.append({"kind": "some ranks", "ranks": wrong})
    outputs = {str(r): {k: found[r][k] for k in ("output", "where") if k in found[r]} for r in wrong}
    failed = {"failed": next(f["failed"] for f in found if "failed" in f)} if any("failed" in f for f in found) else {}
    arguments: Mapping[str, Any] = next((f["arguments"] for r in wrong if (f := found[r]).get("arguments")), {})
    return {**_of(merged), "wrong": wrong, "outputs": outputs, "arguments": arguments, **failed}


def of_deadlock(stacks: Mapping[int, str], waiting: Sequence[int], world_size: int, source: str) -> dict[str, Any]:
    """The diagnosis of a deadlock from the Python stacks (``faulthandler``) of the ranks that did not answer.

    stood: by rank, ``state`` ("returned": its call had ended; "inside": in the candidate's code at ``line``, ``text`` of
    ``function``, which had called ``callee``; "device": its code had returned, what it had launched, one of its ``kernels``, had not
    ended; "unknown").
    kind: "deadlock"; meeting: "returned" where some ranks had left, "busy" where none is in a function that it called by name,
    "together" where all wait at one place, else "apart".
    """
    lines = source.split("\n")
    stood = [
        {"rank": r, **(_stand(stacks.get(r, ""), lines) if r in waiting else {"state": "returned"})} for r in range(world_size)
    ]
    places = {(s["state"], s.get("line")) for s in stood}
    if any(s["state"] == "returned" for s in stood):
        meeting = "returned"
    elif all(s["state"] == "inside" and not s["callee"] for s in stood):
        meeting = "busy"
    else:
        meeting = "together" if len(places) == 1 else "apart"
    for s in stood:
        if s["state"] == "device":
            s["kernels"] = kernels_in(source)
    return {**_of([{"kind": "deadlock", "meeting": meeting, "ranks": list(waiting)}]), "stood": stood}


def of_crash(dump: str, rank: int, source: str) -> dict[str, Any] | None:
    """Where a rank stood when a signal ended it (SIGSEGV and the like), in the form of ``of_deadlock``; None when it left no word.

    kind: "crash".
    """
    stand = _stand(dump, source.split("\n"))
    if stand["state"] != "inside":
        return None
    return {**_of([{"kind": "crash", "ranks": [rank]}]), "stood": [{"rank": rank, **stand}]}


def _of(findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {"version": VERSION, "kinds": list(dict.fromkeys(f["kind"] for f in findings)), "findings": findings}


def _nameless(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in finding.items() if k not in ("ranks", "share")}


def _stand(dump: str, lines: Sequence[str]) -> dict[str, Any]:
    """Where one rank stood, by the thread that was in the candidate's code, else by the harness's frames."""
    for thread in _THREAD.split(dump):
        frames = _FRAME.findall(thread)
        inner = next((i for i, (file, _, _) in enumerate(frames) if _CANDIDATE.search(file)), None)
        if inner is None:
            continue
        _, line, function = frames[inner]
        number = int(line)
        text = lines[number - 1].strip()[:160] if 0 < number <= len(lines) else ""
        callee = frames[inner - 1][2] if inner else ""
        callers = [int(n) for file, n, _ in frames[inner + 1 :] if _CANDIDATE.search(file)]
        return {"state": "inside", "line": number, "function": function, "text": text, "callee": callee, "callers": callers}
    return {"state": "device" if re.search(r" in synchronize\b", dump) else "unknown"}
