"""How near to the physical bound references and candidates come, with communication as a third roof.

The bound is the slowest of three: sending the stated bytes at the bandwidth to the peers, computing what must be computed at the
peak rate of the dtype, and moving what must be moved at the bandwidth of device memory. ``Problem.cost`` states the work,
``conf/hardware`` the rates (vendor's peaks, so that utilisation is understated rather than flattered). A candidate that sends less
than the stated way (``Cost.least_sent_bytes``) can have a utilisation above 1 without being impossible.
Source: the roofline model of Williams, Waterman and Patterson (2009), with the interconnect as a further ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from pkb import hardware, problem
from pkb.analyze.metrics import is_ratio
from pkb.analyze.runs import Run
from pkb.errors import UserError

CASE = ["problem", "world_size", "size", "dtype"]
_SCHEMA: dict[str, Any] = {
    "problem": pl.String,
    "world_size": pl.Int32,
    "size": pl.String,
    "dtype": pl.String,
    "interconnect_ms": pl.Float64,
    "compute_ms": pl.Float64,
    "memory_ms": pl.Float64,
    "bound_ms": pl.Float64,
    "binding": pl.String,
}


@dataclass(frozen=True)
class Bound:
    """The least milliseconds of one call on every rank: by each resource, and the largest of the three (``binding``)."""

    interconnect_ms: float
    compute_ms: float
    memory_ms: float

    @property
    def bound_ms(self) -> float:
        return max(self.interconnect_ms, self.compute_ms, self.memory_ms)

    @property
    def binding(self) -> str:
        times = {"interconnect": self.interconnect_ms, "compute": self.compute_ms, "memory": self.memory_ms}
        return max(times, key=lambda name: times[name])


def bound(name: str, world_size: int, size: str, dtype: str, machine: hardware.Hardware) -> Bound:
    """The bound of one problem at one size.

    size: as evaluations record it, a preset with changed dimensions after it, e.g. "default M=4096". Raises UserError for a
    problem, size or dtype that this version does not have.
    """
    preset, *changed = size.split()
    dims = {k: int(v) for k, v in (item.split("=", 1) for item in changed)}
    spec = problem.load(name)
    cost = spec.cost(spec.shape(world_size, preset, dtype, dims))
    return Bound(
        interconnect_ms=1e3 * cost.sent_bytes / machine.peer_bandwidth,
        compute_ms=1e3 * cost.flops / machine.peak(dtype),
        memory_ms=1e3 * cost.memory_bytes / machine.memory_bandwidth,
    )


def machine_of(run: Run) -> hardware.Hardware:
    """The hardware profile that a run was measured against; raises UserError when its configuration names none that exists."""
    return hardware.load(run.hardware or "h200")


def bounds(run: Run, cases: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Bounds of the distinct (problem, world_size, size, dtype) in ``cases``, and one note for each that has none."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    try:
        machine = machine_of(run)
    except UserError as error:
        return pl.DataFrame(schema=_SCHEMA), [f"no roofline for run {run.label}: {error}"]
    for case in cases.select(CASE).unique().sort(CASE).iter_rows(named=True):
        try:
            found = bound(case["problem"], case["world_size"], case["size"], case["dtype"], machine)
        except (UserError, ValueError) as error:
            notes.append(f"no roofline for {case['problem']}: {error}")
            continue
        rows.append(
            {
                **case,
                "interconnect_ms": found.interconnect_ms,
                "compute_ms": found.compute_ms,
                "memory_ms": found.memory_ms,
                "bound_ms": found.bound_ms,
                "binding": found.binding,
            }
        )
    return pl.DataFrame(rows, schema=_SCHEMA), notes


def roofline(run: Run, evaluations: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """References and candidates against their bounds, and notes on what has none.

    references: run, problem, world_size, size, dtype, the three times, bound_ms, binding, reference_ms (median over all
    evaluations that timed it), utilisation (bound / time) and headroom (time / bound).
    candidates: run, model, problem, attempt, turn, binding, bound_ms, reference_ms, candidate_ms, speedup and utilisation, for
    correct attempts on unshared devices.
    """
    timed = evaluations.filter(is_ratio("reference_ms"), ~pl.col("shared_device"))
    medians = timed.group_by("run", *CASE).agg(pl.col("reference_ms").median()).collect()
    found, notes = bounds(run, medians)
    references = medians.join(found, on=CASE).with_columns(
        utilisation=pl.col("bound_ms") / pl.col("reference_ms"), headroom=pl.col("reference_ms") / pl.col("bound_ms")
    )
    right = timed.filter(pl.col("verdict") == "correct", is_ratio("candidate_ms"))
    keys = ["run", "model", "problem", "attempt", "turn"]
    candidates = right.join(found.lazy(), on=CASE).with_columns(utilisation=pl.col("bound_ms") / pl.col("candidate_ms"))
    shown = [*keys, "binding", "bound_ms", "reference_ms", "candidate_ms", "speedup", "utilisation"]
    return references.sort("run", *CASE), candidates.select(shown).sort(keys).collect(), notes


def fastest(candidates: pl.DataFrame) -> pl.DataFrame:
    """The fastest candidate of every model at every problem, from ``candidates`` of ``roofline``.

    Returns run, model, problem, timed (candidates), attempt, turn, binding, bound_ms, reference_ms, candidate_ms, speedup,
    utilisation (bound / time) and headroom (time / bound).
    """
    group = ["run", "model", "problem"]
    others = [c for c in candidates.columns if c not in group]
    first = candidates.group_by(group).agg(
        pl.len().cast(pl.Int64).alias("timed"), pl.col(others).sort_by("candidate_ms").first()
    )
    return first.with_columns(headroom=pl.col("candidate_ms") / pl.col("bound_ms")).sort(group)
