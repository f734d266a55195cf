"""What reports show beyond the tables: roofline, refinement and mechanisms. Reads more columns, so it is apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from pkb.analyze.roofline import fastest, roofline
from pkb.analyze.runs import Run, evaluations, generations
from pkb.analyze.settings import apart
from pkb.analyze.shares import mechanism_shares
from pkb.analyze.turns import gains, open_ends, transitions, turn_curves


@dataclass(frozen=True)
class Details:
    """What reports show beyond the tables.

    references: ``roofline``. candidates: ``fastest``. turns, transitions, gains: ``turns``. mechanisms: ``mechanism_shares``.
    notes: one line each.
    """

    references: pl.DataFrame
    candidates: pl.DataFrame
    turns: pl.DataFrame
    transitions: pl.DataFrame
    gains: pl.DataFrame
    mechanisms: pl.DataFrame
    notes: tuple[str, ...]

    FRAMES: ClassVar[tuple[str, ...]] = ("references", "candidates", "turns", "transitions", "gains", "mechanisms")


def details(runs: Sequence[Run], policy: str = "run") -> Details:
    """All of it for these runs, side by side."""
    pairs = [apart(r, evaluations(r), generations(r)) for r in runs]
    rows, answers = (pl.concat(frames) for frames in zip(*pairs, strict=True))
    refined = [one for r, (one, _) in zip(runs, pairs, strict=True) if r.several_turns]
    roofs = [roofline(run, one) for run, (one, _) in zip(runs, pairs, strict=True)]
    turns = turn_curves(rows, answers, policy)
    return Details(
        references=pl.concat([r[0] for r in roofs]),
        candidates=fastest(pl.concat([r[1] for r in roofs])),
        turns=turns,
        transitions=transitions(rows.head(0) if turns.is_empty() else rows),
        gains=gains(rows, answers),
        mechanisms=mechanism_shares(rows),
        notes=(*(note for r in roofs for note in r[2]), *(note for one in refined for note in open_ends(one))),
    )
