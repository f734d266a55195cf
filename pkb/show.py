"""Plain text and JSON for the command line: problems, one evaluation, findings. Needs nothing but the standard library."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pkb import problem as known
from pkb.records import Evaluation

WORLD_SIZES_SHOWN = (2, 4, 8)


def json_text(data: Any) -> str:
    """JSON that every parser takes: numbers without a value (NaN, infinity) become null."""
    return json.dumps(_finite(data), default=str, ensure_ascii=False)


def problem_list() -> dict[str, Any]:
    """Number, name, title and category of every problem, read from the text of its spec.py: some specs import torch."""
    found = []
    for name in known.names():
        stated = _stated(known.problems_root() / name / "spec.py")
        if not {"title", "category"} <= stated.keys():  # not written as literals
            loaded = known.load(name)
            stated = {"title": loaded.title, "category": loaded.category}
        found.append({"id": int(name[:3]), "problem": name, "title": stated["title"], "category": stated["category"]})
    return {"problems": found}


def problem_list_text(data: Mapping[str, Any]) -> str:
    """One line each."""
    width = max((len(p["problem"]) for p in data["problems"]), default=0)
    return "\n".join(f"{p['problem']:<{width}}  {p['category']:<20}  {p['title']}" for p in data["problems"])


def problem_details(ident: str) -> dict[str, Any]:
    """One problem: signature, sizes, deviations, and cost by size and world size (bytes, operations; per rank and call)."""
    p = known.load(ident)
    parameters = [str(parameter) for parameter in p.parameters()]
    sizes = {}
    for preset, dims in p.sizes.items():
        costs = {}
        for world_size in WORLD_SIZES_SHOWN:
            shape = known.Shape(world_size, p.dimensions(preset))
            reason = p.admissible(shape)
            costs[str(world_size)] = {"not_possible": reason} if reason else vars(p.cost(shape))
        sizes[preset] = {"dimensions": dict(dims), "cost_per_rank_by_world_size": costs}
    return {
        "id": p.id,
        "problem": p.name,
        "title": p.title,
        "category": p.category,
        "source": p.source,
        "parameters": parameters,
        "changes_in_place": list(p.mutates),
        "deviations": list(p.deviations),
        "sizes": sizes,
    }


def problem_details_text(data: Mapping[str, Any]) -> str:
    """For people."""
    lines = [
        f"{data['problem']}: {data['title']}",
        f"  category    {data['category']}",
        f"  source      {data['source']}",
        f"  signature   solution({', '.join(data['parameters'])})",
    ]
    if data["changes_in_place"]:
        lines.append(f"  in place    {', '.join(data['changes_in_place'])}")
    lines += [f"  deviation   {line}" for line in data["deviations"]]
    for preset, size in data["sizes"].items():
        lines.append(f"  size {preset}: " + ", ".join(f"{k}={v}" for k, v in size["dimensions"].items()))
        for world_size, cost in size["cost_per_rank_by_world_size"].items():
            if "not_possible" in cost:
                lines.append(f"    {world_size} ranks: not possible ({cost['not_possible']})")
                continue
            lines.append(
                f"    {world_size} ranks: sends {_si(cost['sent_bytes'])}B, computes {_si(cost['flops'])}FLOP, "
                f"moves {_si(cost['memory_bytes'])}B of memory, holds {_si(cost['footprint_bytes'])}B (per rank and call, bf16)"
            )
    return "\n".join(lines)


def evaluation_text(e: Evaluation) -> str:
    """A verdict with its evidence, for people."""
    lines = [f"{e.problem}: {e.verdict}", f"  {e.detail}" if e.detail else ""]
    if e.verdict != "correct":
        lines.append(f"  ended in stage '{e.stage}'")
    if e.max_error is not None:
        lines.append(f"  largest error {e.max_error:.3g} of its tolerance, over {e.trials} trials")
    if e.speedup is not None:
        interval = f" [{e.speedup_low:.2f}, {e.speedup_high:.2f}]" if e.speedup_low is not None else ""
        lines.append(
            f"  speedup {e.speedup:.2f}{interval}: reference {e.reference_ms:.4g} ms, candidate {e.candidate_ms:.4g} ms"
        )
    stages = ", ".join(f"{k} {v:.1f}" for k, v in e.seconds_by_stage.items())
    lines.append(f"  {e.world_size} ranks on {e.device}, size {e.size}, {e.dtype}" + (f"; seconds: {stages}" if stages else ""))
    if e.build_log and e.verdict == "compile_error":
        lines += ["", e.build_log.strip()]
    return "\n".join(line for line in lines if line is not None and line != "  ")


def findings_text(data: Mapping[str, Any], indent: int = 0) -> str:
    """Nested findings as indented lines."""
    lines: list[str] = []
    for key, value in data.items():
        label = " " * indent + str(key).replace("_", " ")
        if isinstance(value, Mapping):
            lines += [f"{label}:", findings_text(value, indent + 2)]
        elif isinstance(value, list | tuple) and value and any(isinstance(item, Mapping) for item in value):
            lines.append(f"{label}:")
            lines += [findings_text(item, indent + 2) if isinstance(item, Mapping) else f"  {item}" for item in value]
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            lines.append(
                f"{label}: {'yes' if shown is True else 'no' if shown is False else '-' if shown in (None, '') else shown}"
            )
    return "\n".join(line for line in lines if line)


def _stated(path: Path) -> dict[str, str]:
    """The keyword arguments of ``PROBLEM = Problem(...)`` that are literal strings."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == "PROBLEM":
            constants = ((k.arg, k.value.value) for k in node.value.keywords if isinstance(k.value, ast.Constant))
            return {str(name): value for name, value in constants if isinstance(value, str)}
    return {}


def _si(value: float) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def profile_text(found: dict[str, Any], out: Path | None = None) -> str:
    """``profiling.summary`` as text."""
    names = ("communication", "compute", "overlapped", "fused", "idle")
    lines = [f"{found['calls']} calls profiled", "", "rank  ms/call  " + "  ".join(f"{n:>13}" for n in names)]
    lines += [
        f"{rank['rank']:>4}  {rank['call_ms']:>7.3f}  " + "  ".join(f"{rank[n]:>13.1%}" for n in names)
        for rank in found["ranks"]
    ]
    for rank in found["ranks"]:
        gaps = rank["gaps"]
        told = f"; {gaps['count']:g} gaps per call, the longest {gaps['longest_us']:g} us" if gaps else ""
        lines += ["", f"rank {rank['rank']}: what takes longest{told}"]
        lines += [f"  {t['share']:>6.1%}  {t['count']:>6g} x  {t['kind']:<13}  {t['name']}" for t in rank["top"]]
    if any(rank["gaps"] is None for rank in found["ranks"]):
        lines += ["", "idle: time outside PyTorch's operators, in Python or in C++ extensions"]
    if out is not None:
        lines += ["", f"traces in {out}: open rank*.json in chrome://tracing or Perfetto"]
    return "\n".join(lines)
