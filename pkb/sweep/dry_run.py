"""``pkb sweep --dry-run``: what a session would ask and what that may cost. Asks nobody, writes nothing, needs no key."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from pkb import prompt
from pkb.config import Config
from pkb.store import run as runs
from pkb.sweep import plan as plans

if TYPE_CHECKING:
    from pkb.generate.forecast import Forecast


def dry_run(config: Config, as_json: bool = False) -> int:
    """Print the forecast; returns the exit code. Raises UserError for bad input, as the sweep itself would."""
    from pkb.generate.forecast import forecast
    from pkb.generate.models import load_models

    run = config.run_path()
    runs.check(run, config)
    problems = config.problem_names()
    prompts = {name: prompt.render(name, config) for name in problems}
    models = load_models(config.models, need_keys=False)
    plan = plans.make(run, run.resolve().name, [m.name for m in models], problems, config.attempts, config.agent)
    calls = {m.name: Counter(key.problem for key in plan.to_generate(m.name)) for m in models}
    found = forecast(models, prompts, calls)
    if as_json:
        from pkb.show import json_text

        print(json_text({"run": str(run), "models": [dataclasses.asdict(f) for f in found], "total": _total(found)}))
    else:
        _print(str(run), found)
    return 0


def _total(found: list[Forecast]) -> dict[str, Any]:
    lows, highs = [f.cost_low_usd for f in found], [f.cost_high_usd for f in found]
    known = not any(cost is None for cost in lows)
    return {
        "calls": sum(f.calls for f in found),
        "prompt_tokens": sum(f.prompt_tokens for f in found),
        "cost_low_usd": sum(c for c in lows if c is not None) if known else None,
        "cost_high_usd": sum(c for c in highs if c is not None) if known else None,
    }


def _print(run: str, found: list[Forecast]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{run}: what would be asked", title_justify="left")
    table.add_column("model")
    for heading in ("calls", "prompt tokens", "cost, short answers", "cost, all of max_tokens"):
        table.add_column(heading, justify="right")
    total = _total(found)
    for row in [*map(dataclasses.asdict, found), {"model": "all", **total}]:
        cells = [
            f"{row['calls']:,}",
            f"{row['prompt_tokens']:,}",
            _dollars(row["cost_low_usd"]),
            _dollars(row["cost_high_usd"]),
        ]
        table.add_row(row["model"], *cells, end_section=row["model"] == found[-1].model)
    Console().print(table)


def _dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:,.2f}"
