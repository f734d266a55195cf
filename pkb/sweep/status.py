"""How far a run is, read from its directory by anybody while or after it is written."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pkb.config import AgentConfig
from pkb.store import reader
from pkb.store import run as runs
from pkb.sweep import plan as plans
from pkb.sweep import view


def read(run: Path) -> dict[str, Any]:
    """Counts from the tables, who is writing, and the driver's own view of a moment ago. Raises UserError for no run directory.

    Attempts count as judged as they do for ``pkb sweep``; ``generations`` and ``verdicts`` count rows, one for each turn.
    """
    description = runs.read(run)
    models = runs.model_names(description)
    generated = _counts(run, "generations")
    judged = _counts(run, "evaluations")
    each = len(description["problems"]) * description["config"]["attempts"]
    totals = dict.fromkeys(models, each)
    for name in runs.imported(description):
        totals[name] = sum(generated.get(name, {}).values())
    snapshot = run / view.SNAPSHOT
    live = json.loads(snapshot.read_text()) if snapshot.is_file() else None
    agent = _agent(description)
    problems, attempts = description["problems"], description["config"]["attempts"]
    plan = plans.make(run, description["run"], models, problems, attempts, agent, runs.imported(description))
    finished = {name: plan.count_judged(name) - (each - totals[name]) for name in models}
    done = sum(finished.values())
    return {
        "run": description["run"],
        "path": str(run),
        "created": description["created"],
        "sessions": len(description["sessions"]),
        "writer": writer(run),
        "total": sum(totals.values()),
        "done": done,
        "complete": done == sum(totals.values()),
        "turns": agent.max_turns,
        "models": {
            name: {
                "total": totals[name],
                "done": finished[name],
                "generations": generated.get(name, {}),
                "verdicts": judged.get(name, {}),
            }
            for name in models
        },
        "live": live,
        "live_age_seconds": time.time() - snapshot.stat().st_mtime if live else None,
    }


def show(found: Mapping[str, Any]) -> None:
    """Print it for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    state = (
        f"being written by {found['writer']}" if found["writer"] else "complete" if found["complete"] else "stopped, incomplete"
    )
    console.print(
        f"{found['path']}: {found['done']} of {found['total']} attempts judged, {state}", soft_wrap=True, highlight=False
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "answers", "judged", "verdicts" if found["turns"] == 1 else "verdicts on turns"):
        table.add_column(heading)
    for name, m in found["models"].items():
        verdicts = ", ".join(f"{v} {n}" for v, n in sorted(m["verdicts"].items(), key=lambda item: -item[1]))
        answers = ", ".join(f"{v} {n}" for v, n in sorted(m["generations"].items()))
        table.add_row(name, answers, f"{m['done']}/{m['total']}", verdicts)
    console.print(table)
    if found["writer"] and found["live"]:
        console.print(f"\nas of {view.duration(found['live_age_seconds'])} ago:", highlight=False)
        console.print(view.table(found["live"]))
    elif not found["complete"]:
        console.print(f"continue it with: pkb sweep --resume {found['path']}", soft_wrap=True, highlight=False)


def writer(run: Path) -> str | None:
    """Who holds the run's lock now; None when nobody does."""
    try:
        descriptor = os.open(run / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
    finally:
        os.close(descriptor)


def _agent(description: Mapping[str, Any]) -> AgentConfig:
    """How many turns attempts have, and what ends them; keys that this version does not know are left out."""
    stored = description["config"].get("agent") or {}
    return AgentConfig(**{f.name: stored[f.name] for f in dataclasses.fields(AgentConfig) if f.name in stored})


def _counts(run: Path, table: str) -> dict[str, dict[str, int]]:
    if not (run / table).is_dir():
        return {}
    found: dict[str, dict[str, int]] = {}
    for row in reader.done_keys(run, table).group_by("model", "outcome").len().sort("len", descending=True).to_dicts():
        found.setdefault(row["model"], {})[row["outcome"]] = row["len"]
    return found
