"""The tables of docs/measurements.md, from the GPU benchmark's state and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gpu_state import State

STAGES = ("load", "correctness", "timing", "end")


def report(state: State) -> str:
    """Markdown; a section for every step that has results."""
    sections = [_head(state)]
    for step, section in (
        ("doctor", _doctor),
        ("candidates", _candidates),
        ("faults", _faults),
        ("references", _references),
    ):
        rows = {key.split("/", 1)[1]: row for key, row in state.items.items() if key.startswith(step + "/")}
        if rows:
            sections.append(section(state, rows))
    return "\n\n".join(sections) + "\n"


def _head(state: State) -> str:
    m, s = state.machine, state.settings
    gpus = m.get("gpus", [])
    where = f"{len(gpus)} x {gpus[0]}" if gpus else "CPU ranks"
    lines = [
        "# Measurements",
        "",
        f"{m.get('date', '')}, commit {m.get('commit') or 'unknown'}: {where}, driver {m.get('driver') or '-'}, torch {m.get('torch')}, "
        f"CUDA {m.get('cuda') or '-'}, NCCL {m.get('nccl') or '-'}, {m.get('cpus')} CPU cores. {s['ranks']} ranks, {s['dtype']}, size "
        f"`{s['size']}`.",
        "",
        "Written by `benchmarks/gpu.py --report`; its docstring says how to repeat it.",
    ]
    if s["share"]:
        lines += [
            "",
            "**The ranks shared a GPU** (`shared_device`): verdicts are valid; collectives went through host memory and both ranks'",
            "kernels through one device, so times, speedups and shares of the bound say nothing about this hardware.",
        ]
    return "\n".join(lines)


def _doctor(state: State, rows: dict[str, dict[str, Any]]) -> str:
    row = rows["machine"]
    if "error" in row:
        return f"## The machine\n\nNot measured: {row['error']}"
    lines = [f"The canary: {row['health']}. Isolation: `{row['sandbox']}`."]
    if link := row.get("link"):
        kind = "within the shared GPU" if link["shared_device"] else "between peers"
        lines.append(
            f"Peer access: {_yes(link['p2p'])}; multicast: {_yes(link['multicast'])}. Copies through symmetric memory {kind}, "
            f"one direction: {link['read_bytes_per_s'] / 1e9:.0f} GB/s read, {link['write_bytes_per_s'] / 1e9:.0f} GB/s written."
        )
    return "## The machine\n\n" + " ".join(lines)


def _candidates(state: State, rows: dict[str, dict[str, Any]]) -> str:
    table = [
        [
            name,
            row.get("verdict", "not judged"),
            _number(row.get("max_error")),
            _number(row.get("reference_ms")),
            _number(row.get("candidate_ms")),
            _interval(row),
            str(row.get("collective_bytes", "")),
            _number(row.get("stages", {}).get("total")),
        ]
        for name, row in rows.items()
    ]
    head = [
        "candidate",
        "verdict",
        "error",
        "reference ms",
        "candidate ms",
        "speedup (95 % interval)",
        "collective bytes",
        "node s",
    ]
    right = sum(row.get("verdict") == "correct" for row in rows.values())
    problems = {row["problem"] for row in rows.values() if row.get("verdict") == "correct"}
    text = [
        "## Candidates on symmetric memory",
        f"{right} of {len(rows)} correct, on {len(problems)} problems. Error in units of what is allowed.",
        _table(head, table),
        *_reasons(rows),
    ]
    if totals := [row["stages"]["total"] for row in rows.values() if "total" in row.get("stages", {})]:
        shares = ", ".join(
            f"{stage} {statistics.median(row['stages'].get(stage, 0.0) for row in rows.values() if 'stages' in row):.2f} s"
            for stage in STAGES
        )
        text.append(
            f"Node seconds per candidate: median {statistics.median(totals):.2f}, largest {max(totals):.2f}. By stage (medians): "
            f"{shares}."
        )
    if state.batches:
        text.append(_throughput(state.batches))
    return "\n\n".join(text)


def _throughput(batches: Sequence[dict[str, Any]]) -> str:
    judged, built = sum(b["judged"] for b in batches), sum(b["built"] for b in batches)
    wall, node = sum(b["wall_seconds"] for b in batches), sum(b["node_seconds"] for b in batches)
    used = [(b["gpu_utilisation"], b["wall_seconds"]) for b in batches if b["gpu_utilisation"] is not None]
    busy = f"; GPU utilisation {sum(u * w for u, w in used) / sum(w for _, w in used):.0%}" if used else ""
    return (
        f"Throughput: {judged} candidates in {wall:.0f} s ({3600 * judged / wall:.0f} per hour), {built} of them built in that time "
        f"({sum(b['build_seconds'] for b in batches):.0f} s of compiling on {batches[-1]['builders']} builders); the node was judging "
        f"{node / wall:.0%} of the time and waited for builds "
        f"{sum(b['waited_for_builds_seconds'] for b in batches) / wall:.0%}{busy}. Start-up of the node included."
    )


def _faults(state: State, rows: dict[str, dict[str, Any]]) -> str:
    table = [
        [
            name,
            f"{row.get('verdict', 'not judged')} ({'as it must' if row.get('as_wanted') else 'wanted ' + ' or '.join(row.get('wanted', []))})",
            _number(row.get("verdict_seconds")),
            str(row.get("health", "")),
            str(row.get("next_verdict", "")),
            ", ".join(f"{n / 2**20:.0f}" for n in row.get("memory_lost_bytes", [])) or "-",
        ]
        for name, row in rows.items()
    ]
    head = ["fault", "verdict", "after s", "node afterwards", "next candidate", "MiB not returned, by GPU"]
    return "\n\n".join(["## Faults", _table(head, table), *_reasons(rows)])


def _references(state: State, rows: dict[str, dict[str, Any]]) -> str:
    table = [
        [
            name,
            row.get("verdict", "not judged"),
            _number(row.get("oracle_error"), "{:.1e}"),
            _number(row.get("reference_ms")),
            f"{row['share_of_bound']:.1%} ({row['binding']})" if row.get("share_of_bound") else "",
            _interval(row),
            "" if "contains_1" not in row else _yes(row["contains_1"] and row["within_2_percent"]),
        ]
        for name, row in rows.items()
    ]
    timed = [row for row in rows.values() if "contains_1" in row]
    good = sum(row["contains_1"] and row["within_2_percent"] for row in timed)
    contains = sum(row["contains_1"] for row in timed)
    within = sum(row["within_2_percent"] for row in timed)
    right = sum(row.get("verdict") == "correct" for row in rows.values())
    summary = f"{right} of {len(rows)} correct as their own candidates (`integrity.collectives=any`)."
    if timed:
        summary += (
            f" A/A on {len(timed)}: the interval contains 1.0 for {contains / len(timed):.1%}, the median is within 2 % for "
            f"{within / len(timed):.1%}, both for {good / len(timed):.1%}."
        )
    head = ["problem", "verdict", "RMS error to oracle", "reference ms", "share of bound (by)", "A/A speedup", "A/A holds"]
    return "\n\n".join(
        [f"## References (bounds from profile {state.settings['hardware']})", summary, _table(head, table), *_reasons(rows)]
    )


def _reasons(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A line for whatever is not as it should be."""
    said = []
    for name, row in rows.items():
        reason = row.get("error") or ("" if row.get("verdict") == "correct" or row.get("as_wanted") else row.get("detail", ""))
        if reason:
            said.append(f"- {name}: {' '.join(str(reason).split())[:300]}")
    return ["\n".join(said)] if said else []


def _interval(row: dict[str, Any]) -> str:
    if row.get("speedup") is None:
        return ""
    return f"{row['speedup']:.3f} ({row['speedup_low']:.3f} to {row['speedup_high']:.3f})"


def _number(x: float | None, form: str = "{:.3g}") -> str:
    return "" if x is None else form.format(x)


def _yes(x: bool) -> str:
    return "yes" if x else "no"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
