"""What people see of a sweep while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb.files import write_atomic
from pkb.sweep.progress import STAGES, Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SNAPSHOT = "progress.json"
REFRESH_SECONDS = 0.5
SAVE_SECONDS = 2.0
LINE_SECONDS = 10.0
NODES_SHOWN = 12


async def follow(progress: Progress, run: Path, console: Console) -> None:
    """Show the progress until cancelled, and keep ``progress.json`` in the run directory up to date for ``pkb status``."""
    show = _live if console.is_terminal else _lines
    async with asyncio.TaskGroup() as group:
        group.create_task(show(progress, console))
        group.create_task(_save(progress, run))


async def _save(progress: Progress, run: Path) -> None:
    written = True
    while True:
        before, written = written, await asyncio.to_thread(save, progress, run)
        if before and not written:
            progress.notice(f"cannot write {SNAPSHOT}")
        await asyncio.sleep(SAVE_SECONDS)


def save(progress: Progress, run: Path) -> bool:
    """Write ``progress.json``, if that is possible; a full disk is no reason to stop."""
    try:
        write_atomic(run / SNAPSHOT, json.dumps(progress.snapshot()))
    except OSError:
        return False
    return True


async def _live(progress: Progress, console: Console) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        try:
            while True:
                live.update(table(progress.snapshot()), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            live.update(table(progress.snapshot()), refresh=True)


async def _lines(progress: Progress, console: Console) -> None:
    """A line every ten seconds, and every notice once."""
    shown = 0
    waited = LINE_SECONDS
    try:
        while True:
            shown = _new_notices(progress, console, shown)
            if waited >= LINE_SECONDS:
                console.print(line(progress.snapshot()), highlight=False, soft_wrap=True, markup=False)
                waited = 0.0
            await asyncio.sleep(REFRESH_SECONDS)
            waited += REFRESH_SECONDS
    finally:
        _new_notices(progress, console, shown)
        console.print(line(progress.snapshot()), highlight=False, soft_wrap=True, markup=False)


def _new_notices(progress: Progress, console: Console, shown: int) -> int:
    new = progress.notice_count - shown
    for text in list(progress.notices)[-new:] if new else []:
        console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
    return progress.notice_count


def line(s: Mapping[str, Any]) -> str:
    """A snapshot in one line."""
    stages = ", ".join(f"{name} {s['stages'][name]}" for name in STAGES)
    ready = sum(n["state"] == "ready" for n in s["nodes"].values())
    nodes = f"{ready}/{len(s['nodes'])} nodes" + (f" {s['utilisation']:.0%} busy" if s["utilisation"] is not None else "")
    if not s["nodes"]:
        nodes = "connecting to Ray" if s["state"] == "starting" else "no node yet"
    parts = [
        f"{s['done']}/{s['total']} judged",
        f"{s['failed']} failed" if s["failed"] else "",
        stages,
        nodes,
        f"{60 * s['per_second']:.1f}/min" if s["per_second"] else "",
        f"{duration(s['seconds_left'])} left" if s["seconds_left"] is not None else "",
        f"${s['cost_usd']:.2f}" if s["cost_usd"] else "",
    ]
    return f"[{duration(s['seconds'])}] " + " | ".join(part for part in parts if part)


def table(s: Mapping[str, Any]) -> RenderableType:
    """A snapshot as tables: models x stages, verdicts, nodes, the latest notices."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    models = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "", "judged", *STAGES, "failed", "cost", "verdicts"):
        models.add_column(heading, justify="left" if heading in ("model", "", "verdicts") else "right", overflow="ellipsis")
    for name, m in s["models"].items():
        verdicts = ", ".join(f"{v} {n}" for v, n in sorted(m["verdicts"].items(), key=lambda item: -item[1]))
        models.add_row(
            name,
            ProgressBar(total=max(1, m["total"]), completed=m["done"] + m["failed"], width=20),
            f"{m['done']}/{m['total']}",
            *(str(m["stages"].get(stage, 0) or "") for stage in STAGES),
            Text(str(m["failed"] or ""), style="red"),
            f"${m['cost_usd']:.2f}",
            m["unavailable"] or verdicts,
        )
    nodes = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("node", "state", "busy", "judged", "now"):
        nodes.add_column(heading, justify="right" if heading in ("busy", "judged") else "left", overflow="ellipsis")
    for name, n in list(s["nodes"].items())[:NODES_SHOWN]:
        state = Text(n["state"] + (f": {n['reason']}" if n["reason"] else ""), style="" if n["state"] == "ready" else "red")
        busy = f"{n['utilisation']:.0%}" if n["utilisation"] is not None else ""
        nodes.add_row(name, state, busy, str(n["judged"]), f"{n['doing']} {n['doing_seconds']:.0f}s" if n["doing"] else "")
    more = len(s["nodes"]) - NODES_SHOWN
    notices = [Text(f"  {text}", style="yellow") for text in s["notices"]]
    rest = [Text(f"and {more} more nodes")] if more > 0 else []
    return Group(models, Text(), nodes, *rest, Text(line(s), style="dim"), *notices)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as people write them."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
