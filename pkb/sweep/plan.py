"""What a run still has to do: every (model, problem, attempt) that its tables do not answer yet."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb.config import AgentConfig
from pkb.errors import UserError
from pkb.records import AttemptKey, Generation
from pkb.refine import resume
from pkb.verdict import GenerationStatus, Verdict

if TYPE_CHECKING:
    import numpy as np
    import polars as pl


#: Outcomes that settle an attempt, by table; the others are tried again by the next session.
COUNTED = {
    "generations": [s.value for s in GenerationStatus if s.counts],
    "evaluations": [v.value for v in Verdict if v.counts],
}


@dataclass(frozen=True)
class Plan:
    """The attempts of a run as bit maps of shape (models, problems, attempts): a byte each, ten million of them fit.

    generated: a counted answer is stored. judged: it has its verdict. Rows that stand for neither are in the ``retry_`` lists, and go
    before the session begins; those that tell of money spent are in ``replace_generations``, and stay until the next row of their
    key tells the same.
    """

    run: str
    models: tuple[str, ...]
    problems: tuple[str, ...]
    attempts: int
    generated: np.ndarray
    judged: np.ndarray
    retry_generations: tuple[AttemptKey, ...] = ()
    retry_evaluations: tuple[AttemptKey, ...] = ()
    agent: AgentConfig = field(default_factory=AgentConfig)
    replace_generations: frozenset[AttemptKey] = frozenset()
    imported: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of attempts of the whole run."""
        return len(self.models) * len(self.problems) * self.attempts

    def to_generate(self, model: str) -> Iterator[AttemptKey]:
        """The attempts of a model that have no answer, problem by problem."""
        row = self.generated[self.models.index(model)]
        for p, problem in enumerate(self.problems):
            for attempt in (~row[p]).nonzero()[0]:
                yield AttemptKey(self.run, model, problem, int(attempt))

    def begun(self, model: str) -> Iterator[AttemptKey]:
        """The attempts of a model that have an answer and are not over."""
        m = self.models.index(model)
        for p, attempt in zip(*(self.generated[m] & ~self.judged[m]).nonzero(), strict=True):
            yield AttemptKey(self.run, model, self.problems[p], int(attempt))

    def count_to_generate(self, model: str) -> int:
        """How many that are."""
        return int((~self.generated[self.models.index(model)]).sum())

    def may_ask(self, model: str) -> bool:
        """Whether there is a question left for this model; an attempt of several turns that is not over may have one."""
        open_attempts = ~self.judged if self.agent.max_turns > 1 else ~self.generated
        return bool(open_attempts[self.models.index(model)].any())

    def count_judged(self, model: str) -> int:
        """How many attempts of a model have their verdict."""
        return int(self.judged[self.models.index(model)].sum())


def make(
    run: Path,
    name: str,
    models: Sequence[str],
    problems: Sequence[str],
    attempts: int,
    agent: AgentConfig | None = None,
    imported: Collection[str] = (),
) -> Plan:
    """The plan of a run directory, which may be empty or new; ``name`` is the run's own, as run.yaml has it.

    agent: with several turns, an attempt is judged when its last turn is; until then ``unfinished`` has its turns. imported: models
    that are folders of kernels; nobody can be asked for those that are not there, so nothing is left to do for them.

    Raises UserError when rows name a model or problem that the configuration does not (another run's files).
    """
    import numpy as np

    agent = agent or AgentConfig()
    shape = (len(models), len(problems), attempts)
    generated, judged = np.zeros(shape, bool), np.zeros(shape, bool)
    retry_generations: list[AttemptKey] = []
    retry_evaluations: list[AttemptKey] = []
    paid: frozenset[AttemptKey] = frozenset()
    if (run / "generations").is_dir():
        index = _Index(name, tuple(models), tuple(problems), attempts)
        retry_generations += index.fill(generated, run, "generations")
        paid = _paid(run, retry_generations)
        retry_evaluations += index.fill(judged, run, "evaluations")
        kept = _given_up(run, retry_evaluations)
        for key in kept:
            judged[index.place(key)] = True
        retry_evaluations = [key for key in retry_evaluations if key not in kept]
        for m, p, a in zip(*np.nonzero(judged & ~generated), strict=True):  # its answer was in a damaged part
            retry_evaluations.append(AttemptKey(name, models[m], problems[p], int(a)))
        judged &= generated
        if agent.max_turns > 1:
            found = resume.survey(run, name, agent)
            generated[...], judged[...] = False, False
            for bits, places in ((generated, found.begun), (judged, found.finished)):
                for place in places:
                    bits[index.place(AttemptKey(name, *place))] = True
            retry_generations += found.stray_generations
            retry_evaluations += found.stray_evaluations
    for m in (models.index(model) for model in imported):
        absent = ~generated[m]
        generated[m] |= absent
        judged[m] |= absent
    return Plan(
        name,
        tuple(models),
        tuple(problems),
        attempts,
        generated,
        judged,
        tuple(key for key in retry_generations if key not in paid),
        tuple(retry_evaluations),
        agent,
        paid,
        tuple(imported),
    )


def unfinished(run: Path, plan: Plan) -> Iterator[Generation | resume.Past]:
    """What earlier sessions have begun and not ended: answers without a verdict, or the turns so far of longer attempts."""
    if plan.agent.max_turns == 1:
        yield from unjudged(run, plan)
        return
    where = (plan.generated & ~plan.judged).nonzero()
    yield from resume.unfinished(run, {(plan.models[m], plan.problems[p], int(a)) for m, p, a in zip(*where, strict=True)})


def unjudged(run: Path, plan: Plan) -> Iterator[Generation]:
    """The stored answers that wait for a verdict, a part at a time.

    Parts may be replaced by longer revisions while this runs; then the rest is found in those.
    """
    import pyarrow.parquet as pq

    from pkb.store import reader, rows

    wait = plan.generated & ~plan.judged
    index = _Index(plan.run, plan.models, plan.problems, plan.attempts)
    while wait.any():
        before = int(wait.sum())
        for part in reader.parts(run, "generations"):
            try:
                keys = pq.read_table(part, columns=["run", "model", "problem", "attempt", "turn"]).to_pylist()
                if not any(wait[index.place(rows.key_of(k))] for k in keys):
                    continue
                table = pq.read_table(part).to_pylist()
            except FileNotFoundError:
                continue
            for row in table:
                place = index.place(rows.key_of(row))
                if wait[place]:
                    wait[place] = False
                    yield rows.generation_of(row)
        if int(wait.sum()) == before:  # nothing found in a whole pass: these will be generated by the next session
            return


@dataclass(frozen=True)
class _Index:
    """Places of rows in the bit maps."""

    run: str
    models: tuple[str, ...]
    problems: tuple[str, ...]
    attempts: int

    def place(self, key: AttemptKey) -> tuple[int, int, int]:
        return self.models.index(key.model), self.problems.index(key.problem), key.attempt

    def fill(self, bits: np.ndarray, run: Path, table: str) -> list[AttemptKey]:
        """Set the bits of counted rows; the keys of the others."""
        import polars as pl

        from pkb.store import reader

        counted = COUNTED[table]
        frame = reader.done_keys(run, table)
        places = frame.select(
            m=_codes(frame, "model", self.models),
            p=_codes(frame, "problem", self.problems),
            a=pl.col("attempt"),
            o=pl.col("outcome"),
        )
        foreign = places.filter(pl.col("m").is_null() | pl.col("p").is_null() | (pl.col("a") >= self.attempts))
        if foreign.height:
            raise UserError(f"{run}/{table} holds rows of models or problems that this run has not; give another run_dir")
        good = places.filter(pl.col("o").is_in(counted))
        bits[good["m"].to_numpy(), good["p"].to_numpy(), good["a"].to_numpy()] = True
        rest = frame.filter(~pl.col("outcome").is_in(counted))
        return [AttemptKey(self.run, r["model"], r["problem"], r["attempt"], r["turn"]) for r in rest.to_dicts()]


def _codes(frame: pl.DataFrame, column: str, names: Sequence[str]) -> pl.Series:
    import polars as pl

    return frame[column].replace_strict({name: i for i, name in enumerate(names)}, default=None, return_dtype=pl.Int64)


def _given_up(run: Path, keys: Sequence[AttemptKey]) -> set[AttemptKey]:
    """Those harness errors that stand: the attempt brought down several nodes, and would again."""
    import polars as pl

    from pkb.store import reader, rows

    if not keys:
        return set()
    frame = reader.scan(run, "evaluations").filter(pl.col("verdict") == Verdict.HARNESS_ERROR.value)
    columns: list[Any] = ["run", "model", "problem", "attempt", "turn", "extra"]
    return {rows.key_of(row) for row in frame.select(columns).collect().to_dicts() if json.loads(row["extra"]).get("given_up")}


def _paid(run: Path, keys: Sequence[AttemptKey]) -> frozenset[AttemptKey]:
    """Those of them whose rows tell of tokens that the provider billed, or has probably billed."""
    import polars as pl

    from pkb.store import reader, rows

    if not keys:
        return frozenset()
    paths = ("$.billed_tokens", "$.estimated_wasted.tokens")
    billed = [pl.col("usage").str.json_path_match(path).cast(pl.Int64, strict=False) > 0 for path in paths]
    frame = reader.scan(run, "generations").filter(pl.any_horizontal(billed)).select(*reader.KEY_COLUMNS)
    return frozenset(rows.key_of(row) for row in frame.collect().to_dicts()) & frozenset(keys)
