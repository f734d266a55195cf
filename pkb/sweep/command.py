"""``pkb sweep``: wire configuration, store, models, Ray and the driver together, and say how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb import problem as known
from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.files import is_full
from pkb.records import AttemptKey, Generation
from pkb.store import reader
from pkb.store import run as runs
from pkb.store.writer import RunStore
from pkb.sweep import plan as plans
from pkb.sweep.driver import Conversation, Driver, History
from pkb.sweep.plan import Plan
from pkb.sweep.progress import Progress
from pkb.sweep.recorder import Recorder

if TYPE_CHECKING:
    from rich.console import Console

    from pkb.generate.budget import Spent
    from pkb.sweep.ray_backend import RayBackend

REASONS_SHOWN = 8
PUBLISH_SECONDS = 5.0
NO_TERMINAL_WIDTH = 120  # a log file wraps nothing


@dataclass(frozen=True)
class Ending:
    """How a session ended. problem: the harness's or machine's failure that stopped it, if one did. unanswered: why -> attempts
    that nobody was asked about, of which the tables therefore know nothing."""

    interrupted: bool = False
    problem: str = ""
    unanswered: Mapping[str, int] = field(default_factory=dict)


def run_sweep(config: Config, as_json: bool = False) -> int:
    """One session of the run that the configuration names; returns the exit code.

    0: every attempt has its verdict. 1: some have none yet (the list is printed; the same command tries them again). 3: the
    session could not go on. 130: interrupted. Raises UserError for bad input, before anything is written.
    """
    from rich.console import Console

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = max(console.width, NO_TERMINAL_WIDTH)
    run = config.run_path()
    problems = config.problem_names()
    _check_problems(config, problems)
    runs.check(run, config)
    models = _models(run, config)
    if not (run / runs.FILE).exists():
        _check_models(config)
    try:
        plan, ending = _attend(run, config, models, problems, console)
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(f"the disk that holds {run} is full; make room and run the same command to continue") from None
    return _conclude(run, plan, ending, console, as_json)


def _attend(
    run: Path, config: Config, models: Mapping[str, dict[str, Any]], problems: Sequence[str], console: Console
) -> tuple[Plan, Ending]:
    """Plan and work, as the run directory's one writer."""
    with RunStore(run) as store:
        imported = [name for name, model in models.items() if "imported" in model]
        plan = plans.make(run, _run_name(run), list(models), problems, config.attempts, config.agent, imported)
        if any(plan.may_ask(model) for model in plan.models):
            _check_models(config)
        runs.write(run, config, {"models": list(models.values()), "problems": problems})
        store.supersede("generations", plan.retry_generations)
        store.supersede("evaluations", plan.retry_evaluations)
        return plan, _work(config, plan, store, console)


def _work(config: Config, plan: Plan, store: RunStore, console: Console) -> Ending:
    left = int((~plan.judged).sum())
    if not left:
        console.print(f"{store.path}: all {plan.total} attempts are judged", soft_wrap=True, highlight=False)
        return Ending()
    console.print(
        f"{store.path}: {left} of {plan.total} attempts to do ({len(plan.models)} models x {len(plan.problems)} problems x "
        f"{plan.attempts} attempts)",
        soft_wrap=True,
        highlight=False,
    )
    try:
        return asyncio.run(_session(config, plan, store, console))
    except HarnessError as error:
        return Ending(problem=str(error))


async def _session(config: Config, plan: Plan, store: RunStore, console: Console) -> Ending:
    interrupted, leave = _interruptible()  # first: what is imported below takes seconds
    from pkb.sweep import view
    from pkb.sweep.ray_backend import RayBackend

    progress = Progress()
    recorder = Recorder(store, progress.notice)
    handler = _log_to(store.path / "sweep.log")
    backend = RayBackend(config, store.path / "ray.log", progress.notice)
    generator, models = _generator(config, plan, store.path)
    driver = Driver(config, plan, recorder, generator, backend, models, _conversation(config, models), progress)
    watching = asyncio.gather(view.follow(progress, store.path, console), _publish(progress, backend))
    ending = Ending()
    try:
        work = asyncio.create_task(_connect_and_run(backend, driver, plan, store.path))
        await asyncio.wait({work, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if interrupted.done():
            progress.state = "stopping"
            await _finish_calls(generator, progress, {work, leave})
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        unanswered = {f"{m}: {why}": n for m, entry in progress.models.items() for why, n in entry.unanswered.items()}
        ending = Ending(interrupted.done(), unanswered=unanswered)
    finally:
        await backend.close()
        await generator.close()
        progress.state = "interrupted" if ending.interrupted else "ended"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        view.save(progress, store.path)
        logging.getLogger("pkb").removeHandler(handler)
        handler.close()
    return ending


async def _finish_calls(generator: Any, progress: Progress, until: set[asyncio.Future[None]]) -> None:
    """Wait for the calls under way, which are paid for, but not beyond any of ``until``."""
    if generator.under_way and not any(future.done() for future in until):
        progress.notice(
            f"interrupted: waiting for {generator.under_way} calls that are paid for; interrupt again to leave them"
        )
    drained = asyncio.ensure_future(generator.drain("interrupted"))
    await asyncio.wait({drained, *until}, return_when=asyncio.FIRST_COMPLETED)
    drained.cancel()


async def _publish(progress: Progress, backend: RayBackend) -> None:
    while True:
        await asyncio.sleep(PUBLISH_SECONDS)
        backend.publish(progress.gauges())


async def _connect_and_run(backend: Any, driver: Driver, plan: Plan, run: Path) -> None:
    await backend.open()
    await driver.run(plans.unfinished(run, plan))


def _conversation(config: Config, models: dict[str, Any]) -> Conversation:
    """What attempts are asked: one question, or as many turns as ``agent`` allows, in the context windows of these models."""
    if config.agent.max_turns == 1:
        return single_shot(config)
    from pkb.refine.attempt import Refinement

    if not models:
        return Refinement(config)
    from pkb.generate.prices import question_tokens

    known = {name: question_tokens(model) for name, model in models.items()}
    return Refinement(config, {name: tokens for name, tokens in known.items() if tokens})


def single_shot(config: Config) -> Conversation:
    """One question per attempt: the problem's prompt."""
    from pkb import prompt

    cache: dict[str, list[dict[str, Any]]] = {}

    def ask(key: AttemptKey, history: History) -> list[dict[str, Any]] | None:
        if history:
            return None
        if key.problem not in cache:
            cache[key.problem] = prompt.messages(key.problem, config)
        return [dict(message) for message in cache[key.problem]]

    return ask


class _NobodyToAsk:
    """The generator of a session in which every answer is there already."""

    under_way = 0

    async def generate(self, model: Any, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        raise AssertionError(f"{key} has an answer")

    def unavailable(self, name: str) -> str | None:
        return None

    def forget(self, generation: Generation) -> None:
        return None

    async def drain(self, reason: str) -> None:
        return None

    async def close(self) -> None:
        return None


def _generator(config: Config, plan: Plan, run: Path) -> tuple[Any, dict[str, Any]]:
    """The client and the models it knows; importing it takes seconds, so only when there is anything to ask."""
    if not any(plan.may_ask(model) for model in plan.models):
        return _NobodyToAsk(), {}
    from pkb.generate.client import Client
    from pkb.generate.models import load_models

    models = load_models(config.models)
    client = Client(config.generation, models, config.budget, earlier=_spent(run), spool=run / "spool")
    return client, {model.name: model for model in models}


def _spent(run: Path) -> dict[str, Spent]:
    """By model, what the stored answers cost, the calls included that were cut off and probably billed."""
    import polars as pl

    from pkb.generate.budget import Spent

    def of_usage(path: str, kind: Any) -> pl.Expr:
        return pl.col("usage").str.json_path_match(path).cast(kind, strict=False).sum()

    rows = (
        reader.scan(run, "generations")
        .group_by("model")
        .agg(
            cost=pl.col("cost_usd").sum() + of_usage("$.estimated_wasted.cost_usd", pl.Float64),
            tokens=of_usage("$.billed_tokens", pl.Int64) + of_usage("$.estimated_wasted.tokens", pl.Int64),
            calls=pl.len(),
        )
    )
    return {row["model"]: Spent(row["cost"], row["tokens"], row["calls"]) for row in rows.collect().to_dicts()}


def _models(run: Path, config: Config) -> dict[str, dict[str, Any]]:
    """Name -> description of the run's models: as the run has them, else as the configuration names them. No keys in it."""
    if (run / runs.FILE).exists():
        stored = runs.read(run).get("models") or []
        if stored:
            return {model["name"]: model for model in stored}
    from pkb.generate.models import load_models

    return {m.name: dataclasses.asdict(m) for m in load_models(config.models, need_keys=False)}


def _check_models(config: Config) -> None:
    """Raise UserError when a model that is to be asked is unknown, or has no key or no price that a budget needs."""
    from pkb.generate.models import load_models

    models = load_models(config.models)
    if config.budget.cost_usd or any(model.budget_usd for model in models):
        from pkb.generate.prices import check_prices

        check_prices(models, config.budget)


def _check_problems(config: Config, problems: Sequence[str]) -> None:
    """Raise UserError, naming all of them, when problems cannot run with this world size and size, or be asked in so many tokens."""
    reasons = []
    for name in problems:
        try:
            known.load(name).shape(config.ranks, config.size.preset, config.dtype, config.size.dims)
        except UserError as error:
            reasons.append(str(error))
    if reasons:
        more = f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        raise UserError(f"{reasons[0]}{more}; leave it out of problems=[...] or change ranks or size")
    if config.agent.max_turns > 1:
        from pkb import prompt
        from pkb.refine.attempt import check_context

        check_context(config, {name: prompt.render(name, config) for name in problems})


def _run_name(run: Path) -> str:
    return str(runs.read(run)["run"]) if (run / runs.FILE).exists() else run.resolve().name


def _interruptible() -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """Done when the session is to end, and when it is to end without waiting for anything.

    The first SIGINT asks for the one, the second for both, as SIGTERM does, which a SIGKILL follows as a rule; one more kills.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()
    at_once: asyncio.Future[None] = loop.create_future()

    def ask(number: int) -> None:
        if asked.done() or number == signal.SIGTERM:
            at_once.set_result(None)
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)
    return asked, at_once


def _log_to(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("pkb").addHandler(handler)
    logging.getLogger("pkb").propagate = False
    return handler


def _conclude(run: Path, plan: Plan, ending: Ending, console: Console, as_json: bool) -> int:
    from pkb.analyze import tables

    missing = _missing(run, plan, ending)
    code = 130 if ending.interrupted else 3 if ending.problem else 1 if missing else 0
    if as_json:
        from pkb.show import json_text

        summary = tables.summary([run])
        rows = summary.to_dicts() if hasattr(summary, "to_dicts") else summary
        print(
            json_text(
                {"run": str(run), "complete": not missing, "missing": missing, "problem": ending.problem, "summary": rows}
            )
        )
    else:
        tables.print_summary(run, console)
        console.print(f"run directory: {run}", soft_wrap=True, highlight=False)
    sys.stdout.flush()
    said = "interrupted" if ending.interrupted else ending.problem
    if said:
        print(f"pkb: {said}; the same command continues this run" if ending.interrupted else f"pkb: {said}", file=sys.stderr)
    if missing:
        total = sum(missing.values())
        print(
            f"pkb: incomplete: {total} of {plan.total} attempts have no outcome; the same command tries them again",
            file=sys.stderr,
        )
        for reason, count in list(missing.items())[:REASONS_SHOWN]:
            print(f"  {count} x {reason}", file=sys.stderr)
    return code


def _missing(run: Path, plan: Plan, ending: Ending) -> dict[str, int]:
    """Why attempts have no outcome -> how many, the most frequent first."""
    import polars as pl

    now = plans.make(run, plan.run, plan.models, plan.problems, plan.attempts, plan.agent, plan.imported)
    if now.judged.all():
        return {}
    rows = reader.scan(run, "generations").filter(~pl.col("status").is_in(plans.COUNTED["generations"]))
    failed = rows.group_by("model", "status", error=pl.col("error").str.slice(0, 160)).len().collect().to_dicts()
    reasons = {f"{r['model']}: {r['status']}" + (f" ({r['error']})" if r["error"] else ""): r["len"] for r in failed}
    broken = reader.scan(run, "evaluations").filter(~pl.col("verdict").is_in(plans.COUNTED["evaluations"]))
    broken_rows = broken.group_by("model", error=pl.col("detail").str.slice(0, 160)).len().collect().to_dicts()
    reasons |= {f"{r['model']}: harness_error ({r['error']})": r["len"] for r in broken_rows}
    for reason, count in ending.unanswered.items():
        reasons[reason] = reasons.get(reason, 0) + count
    rest = int((~now.judged).sum()) - sum(reasons.values())
    if rest > 0:
        reasons["not reached"] = rest
    return dict(sorted(reasons.items(), key=lambda item: -item[1]))
