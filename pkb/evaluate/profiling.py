"""Where the time of a call goes, by rank: traces from torch.profiler, and what they add up to.

The traces come from the candidate's own processes and are for its author: they decide nothing.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pkb.config import EvaluationConfig
from pkb.evaluate import handed
from pkb.evaluate.ranks import RankGroup
from pkb.problem import TIMING_TRIAL

CALLS = 5
WARMUP = 3
TRACE = "trace.json"
TRACE_BYTES = 128 << 20
#: The annotation around every profiled call, and before the names of ``pkb.symm``'s waiting functions.
CALL, SYMM = "pkb.call", "pkb.symm."
MOST_TOP = 10
_COMMUNICATION = re.compile(
    r"^(?:pkb\.symm\.|c10d::|gloo:|nccl:|record_param_comms)|nccl|symm_mem|multimem|one_shot|two_shot|PtoP|Peer", re.IGNORECASE
)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST = ("cpu_op", "user_annotation")

Span = tuple[float, float]


def trace(
    reference: RankGroup, candidate: RankGroup, settings: EvaluationConfig, key_of: Callable[[int], str], calls: int = CALLS
) -> list[bytes]:
    """A Chrome trace (JSON) of so many calls from every rank, empty where a rank left none. Raises GroupFailed."""
    seconds = settings.limits.timing_seconds
    count = WARMUP + calls
    candidate.tell(do="sets")
    keys = [key_of(TIMING_TRIAL + i) for i in range(count)]
    reference.ask(seconds, do="sets", first=TIMING_TRIAL, keys=keys, send=True)
    candidate.replies(seconds)
    candidate.ask(seconds, do="profile", warmup=WARMUP)
    return [handed.read(candidate.folders, rank, TRACE, TRACE_BYTES) for rank in range(candidate.world_size)]


def summary(traces: Sequence[bytes], own_kernels: Iterable[str] = ()) -> dict[str, Any]:
    """``{"calls", "ranks": [...]}``; a rank whose trace says nothing is left out.

    Of each rank: call_ms; shares of that time: communication, compute, overlapped (both at once), fused (in ``own_kernels``, which
    touch peers and cannot be split), idle; gaps between device operations (count per call, median_us, longest_us; None on CPU); top:
    what takes longest, ``{"name", "kind", "share", "count"}`` with count per call. On CPU ranks idle is the time outside PyTorch's
    operators: Python, and extensions.
    """
    own = frozenset(own_kernels)
    ranks = []
    for rank, data in enumerate(traces):
        events = _events(data)
        calls = [e for e in events if e["name"] == CALL and e["cat"] == "user_annotation"]
        if calls:
            ranks.append({"rank": rank, **_of_rank(events, calls, own)})
    return {"calls": max((r.pop("calls") for r in ranks), default=0), "ranks": ranks}


def kernels_in(source: str) -> list[str]:
    """Names of the kernels that a candidate defines, CUDA and Triton."""
    cuda = re.findall(
        r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:static\s+)?void\s+(?:__\w+__\s*\([^)]*\)\s*)?(\w+)", source
    )
    triton = re.findall(r"@triton\.(?:jit|autotune\b[^\n]*)\s*(?:\([^)]*\)\s*)?(?:@[^\n]+\s*)*def\s+(\w+)", source)
    return list(dict.fromkeys([*cuda, *triton]))


def _events(data: bytes) -> list[dict[str, Any]]:
    """The complete events of a trace that have what is needed of them; the rest, and what is no trace, is left out."""
    try:
        found = json.loads(data)["traceEvents"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    events = []
    for e in found if isinstance(found, list) else ():
        if isinstance(e, dict) and e.get("ph") == "X" and all(isinstance(e.get(k), int | float) for k in ("ts", "dur")):
            kept = {"ts": float(e["ts"]), "dur": float(e["dur"]), "cat": str(e.get("cat")), "name": str(e.get("name"))[:200]}
            events.append({**kept, "thread": (str(e.get("pid")), str(e.get("tid")))})
    return events


def _of_rank(events: list[dict[str, Any]], calls: list[dict[str, Any]], own: frozenset[str]) -> dict[str, Any]:
    start, end = min(e["ts"] for e in calls), max(e["ts"] + e["dur"] for e in calls)
    device = [e for e in events if e["cat"] in _DEVICE and start <= e["ts"]]
    if device:
        end = max(end, *(e["ts"] + e["dur"] for e in device))
        busy = device
        costs = [(e, e["dur"]) for e in device]
    else:
        thread = calls[0]["thread"]
        inside = [
            e for e in events if e["cat"] in _HOST and e["thread"] == thread and start <= e["ts"] < end and e["name"] != CALL
        ]
        costs = _self_times(inside)
        busy = inside
    window = max(end - start, 1e-9)
    spans: dict[str, list[Span]] = defaultdict(list)
    for e in busy:
        spans[_kind(e, own)].append((e["ts"], min(e["ts"] + e["dur"], end)))
    merged = {kind: _union(found) for kind, found in spans.items()}
    communication, compute, fused = (merged.get(k, []) for k in ("communication", "compute", "fused"))
    if not device:  # an operator around a wait is not computing meanwhile
        compute = _minus(compute, communication)
    total = _length(_union([*communication, *compute, *fused]))
    overlapped = _length(communication) + _length(compute) - _length(_union([*communication, *compute]))
    top: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e, cost in costs:
        top[e["name"], _kind(e, own)].append(cost)
    ordered = sorted(top.items(), key=lambda item: -sum(item[1]))[:MOST_TOP]
    return {
        "calls": len(calls),
        "call_ms": round(window / len(calls) / 1e3, 6),
        "communication": round(_length(communication) / window, 4),
        "compute": round(_length(compute) / window, 4),
        "overlapped": round(overlapped / window, 4),
        "fused": round(_length(fused) / window, 4),
        "idle": round(max(0.0, 1 - total / window), 4),
        "gaps": _gaps(device, len(calls)) if device else None,
        "top": [
            {"name": name, "kind": kind, "share": round(sum(cost) / window, 4), "count": round(len(cost) / len(calls), 2)}
            for (name, kind), cost in ordered
        ],
    }


def _kind(event: dict[str, Any], own: frozenset[str]) -> str:
    name = event["name"]
    if event["cat"] == "kernel" and any(k in name for k in own):
        return "fused"
    return "communication" if _COMMUNICATION.search(name) else "compute"


def _self_times(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Each event of one thread with its time outside the events that it encloses."""
    own = {id(e): e["dur"] for e in events}
    stack: list[dict[str, Any]] = []
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            own[id(stack[-1])] -= e["dur"]
        stack.append(e)
    return [(e, max(0.0, own[id(e)])) for e in events]


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for a, b in sorted(spans):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        else:
            merged.append((a, b))
    return merged


def _minus(spans: list[Span], others: list[Span]) -> list[Span]:
    """The parts of ``spans`` that lie in none of ``others``; both are unions."""
    left: list[Span] = []
    for a, b in spans:
        for c, d in others:
            if d <= a or c >= b:
                continue
            if c > a:
                left.append((a, c))
            a = max(a, d)
        if a < b:
            left.append((a, b))
    return left


def _length(spans: Iterable[Span]) -> float:
    return sum(b - a for a, b in spans)


def _gaps(device: list[dict[str, Any]], calls: int) -> dict[str, float]:
    busy = _union((e["ts"], e["ts"] + e["dur"]) for e in device)
    gaps = sorted(b[0] - a[1] for a, b in itertools.pairwise(busy))
    if not gaps:
        return {"count": 0.0, "median_us": 0.0, "longest_us": 0.0}
    return {"count": round(len(gaps) / calls, 2), "median_us": round(gaps[len(gaps) // 2], 2), "longest_us": round(gaps[-1], 2)}
