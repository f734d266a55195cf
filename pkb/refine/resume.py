"""What a run's rows say of attempts of several turns: which go on, and from where."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.config import AgentConfig
from pkb.records import AttemptKey, Evaluation, Generation
from pkb.refine.limits import best, ending
from pkb.store.rows import evaluation_of, generation_of
from pkb.verdict import GenerationStatus, Stage, Verdict

#: An attempt's turns as far as they are recorded, in order; None where the verdict is missing.
Past = list[tuple[Generation, Evaluation | None]]
Place = tuple[str, str, int]  # model, problem, attempt
_GENERATION = ("model", "problem", "attempt", "turn", "status", "usage", "cost_usd", "seconds")
_EVALUATION = ("model", "problem", "attempt", "turn", "verdict", "speedup_low", "shared_device", "seconds_by_stage", "extra")


@dataclass
class Survey:
    """begun: attempts with at least one answer that counts. finished: those that are over, their result confirmed.

    stray_generations, stray_evaluations: rows behind a gap, which another answer will take the place of.
    """

    begun: set[Place] = field(default_factory=set)
    finished: set[Place] = field(default_factory=set)
    stray_generations: list[AttemptKey] = field(default_factory=list)
    stray_evaluations: list[AttemptKey] = field(default_factory=list)


def survey(run: Path, name: str, agent: AgentConfig) -> Survey:
    """The state of every attempt of a run directory; ``name`` is the run's."""
    found = Survey()
    answers, verdicts = _by_attempt(run, "generations", _GENERATION), _by_attempt(run, "evaluations", _EVALUATION)
    for place in {**answers, **verdicts}:
        given = {t: row for t, row in answers[place].items() if GenerationStatus(row["status"]).counts}
        judged = {t: row for t, row in verdicts[place].items() if _settled(row)}
        turns = 0
        while turns in given:
            turns += 1
        found.stray_generations += [AttemptKey(name, *place, t) for t in given if t >= turns]
        found.stray_evaluations += [AttemptKey(name, *place, t) for t in judged if t >= turns]
        if not turns:
            continue
        found.begun.add(place)
        if all(t in judged for t in range(turns)):
            history = [(_brief_generation(given[t]), _brief_evaluation(judged[t])) for t in range(turns)]
            if ending(history, agent) is not None and confirmed(history):
                found.finished.add(place)
    return found


def confirmed(history: Sequence[tuple[Generation, Evaluation]]) -> bool:
    """Whether the attempt's result has been judged apart from the feedback; an attempt without a correct turn needs it not."""
    top = best(history)
    return top is None or bool(history[top][1].extra.get("final"))


def unfinished(run: Path, places: set[Place]) -> Iterator[Past]:
    """The turns of these attempts, an attempt at a time."""
    import polars as pl

    from pkb.store import reader

    if not places:
        return
    wanted = pl.LazyFrame(sorted(places), schema={"model": pl.String, "problem": pl.String, "attempt": pl.Int32}, orient="row")
    keys = ["model", "problem", "attempt"]
    full: dict[str, dict[Place, dict[int, dict[str, Any]]]] = {}
    for table in ("generations", "evaluations"):
        rows = reader.scan(run, table).join(wanted, on=keys, how="semi").collect().iter_rows(named=True)
        full[table] = _grouped(rows)
    for place, answers in full["generations"].items():
        past: Past = []
        while len(past) in answers:
            verdict = full["evaluations"].get(place, {}).get(len(past))
            past.append((generation_of(answers[len(past)]), evaluation_of(verdict) if verdict else None))
        if past:
            yield past


def _by_attempt(run: Path, table: str, columns: Sequence[str]) -> dict[Place, dict[int, dict[str, Any]]]:
    from pkb.store import reader

    return _grouped(reader.scan(run, table).select(columns).collect().iter_rows(named=True))


def _grouped(rows: Any) -> dict[Place, dict[int, dict[str, Any]]]:
    found: dict[Place, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        found[row["model"], row["problem"], row["attempt"]][row["turn"]] = row
    return found


def _settled(row: dict[str, Any]) -> bool:
    """Whether a verdict stands: it counts, or the harness has given the candidate up."""
    return Verdict(row["verdict"]).counts or bool(json.loads(row["extra"]).get("given_up"))


def _brief_generation(row: dict[str, Any]) -> Generation:
    key = AttemptKey("", row["model"], row["problem"], row["attempt"], row["turn"])
    status = GenerationStatus(row["status"])
    return Generation(key, status, "", "", usage=json.loads(row["usage"]), cost_usd=row["cost_usd"], seconds=row["seconds"])


def _brief_evaluation(row: dict[str, Any]) -> Evaluation:
    return Evaluation(
        problem=row["problem"],
        verdict=Verdict(row["verdict"]),
        detail="",
        stage=Stage.DONE,
        world_size=0,
        size="",
        dtype="",
        device="",
        speedup_low=row["speedup_low"],
        shared_device=row["shared_device"],
        seconds_by_stage=json.loads(row["seconds_by_stage"]),
        extra=json.loads(row["extra"]),
    )
