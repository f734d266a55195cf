"""``pkb sweep --dry-run``: what a session would ask and what that may cost. Asks nobody, writes nothing, needs no key.

Nobody knows beforehand how many turns a refinement takes, so its figures are bounds: one turn of every attempt, and all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from pkb import prompt
from pkb.config import Config
from pkb.refine.attempt import check_context
from pkb.store import run as runs
from pkb.sweep import plan as plans

if TYPE_CHECKING:
    from pkb.generate.forecast import Forecast


def dry_run(config: Config, as_json: bool = False) -> int:
    """Print the forecast; returns the exit code. Raises UserError for bad input, as the sweep itself would."""
    from pkb.generate.forecast import Conversation, forecast
    from pkb.generate.models import load_models

    run = config.run_path()
    runs.check(run, config)
    problems = config.problem_names()
    prompts = {name: prompt.render(name, config) for name in problems}
    check_context(config, prompts)
    imported = runs.imported(runs.read(run)) if (run / runs.FILE).exists() else []
    models = load_models([name for name in config.models if name not in imported], need_keys=False)
    names = [*imported, *(m.name for m in models)]
    plan = plans.make(run, run.resolve().name, names, problems, config.attempts, config.agent, imported)
    calls = {m.name: Counter(key.problem for key in plan.to_generate(m.name)) for m in models}
    begun = {m.name: Counter(key.problem for key in plan.begun(m.name)) for m in models} if config.agent.max_turns > 1 else {}
    found = forecast(models, prompts, calls, begun, Conversation(config.agent.max_turns, config.agent.context_tokens))
    if as_json:
        from pkb.show import json_text

        print(json_text({"run": str(run), "models": [dataclasses.asdict(f) for f in found], "total": _total(found)}))
    else:
        _print(str(run), found, config)
    return 0


def _total(found: list[Forecast]) -> dict[str, Any]:
    lows, highs = [f.cost_low_usd for f in found], [f.cost_high_usd for f in found]
    known = not any(cost is None for cost in lows)
    return {
        **{name: sum(getattr(f, name) for f in found) for name in ("calls_low", "calls", "prompt_tokens_low", "prompt_tokens")},
        "cost_low_usd": sum(c for c in lows if c is not None) if known else None,
        "cost_high_usd": sum(c for c in highs if c is not None) if known else None,
    }


def _print(run: str, found: list[Forecast], config: Config) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{run}: what would be asked", title_justify="left")
    table.add_column("model")
    for heading in ("calls", "prompt tokens", "cost, short answers", "cost, all of max_tokens"):
        table.add_column(heading, justify="right")
    total = _total(found)
    for row in [*map(dataclasses.asdict, found), {"model": "all", **total}]:
        cells = [
            _range(row["calls_low"], row["calls"]),
            _range(row["prompt_tokens_low"], row["prompt_tokens"]),
            _dollars(row["cost_low_usd"]),
            _dollars(row["cost_high_usd"]),
        ]
        table.add_row(row["model"], *cells, end_section=bool(found) and row["model"] == found[-1].model)
    console = Console()
    console.print(table)
    if config.agent.max_turns > 1:
        console.print(
            f"Attempts take 1 to {config.agent.max_turns} turns (agent.max_turns). Of two figures the second is an upper bound: "
            "every turn is taken, every answer uses all of max_tokens, and questions grow up to agent.context_tokens.",
            highlight=False,
        )


def _range(low: int, high: int) -> str:
    return f"{high:,}" if low == high else f"{low:,} - {high:,}"


def _dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:,.2f}"
