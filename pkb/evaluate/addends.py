"""Mistakes in a sum over ranks: addends that are missing, counted twice, or of another call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from pkb.evaluate.scene import SLACK, Hypothesis, Known, Scene, near, neighbours, rounded, wide

#: With more ranks only one rank's mistake at a time is looked for; so many elements tell sets of ranks apart.
MOST_RANKS, FEW_ELEMENTS = 8, 1 << 13
#: How many sets of ranks are worth a hypothesis of their own.
LIKELIEST = 2


def hypotheses(scene: Scene, where: torch.Tensor) -> Iterator[Hypothesis]:
    """Where the output is a sum of one term per rank: terms are missing, counted twice, or of another call.

    where: wrong elements (flat indices), by which the sets of ranks are chosen that may share a fault.
    """
    expected = wide(scene.expected)
    terms = _terms(scene.now, scene)
    if not terms:
        return
    for r, term in enumerate(terms):
        yield Hypothesis(expected - term, {"kind": "term missing", "sources": [r]})
        yield Hypothesis(expected + term, {"kind": "term doubled", "sources": [r]})
        yield Hypothesis(term, {"kind": "single term", "sources": [r]})
    for ranks in _likeliest(scene, where, [-term for term in terms]):
        if len(ranks) < len(terms) - 1:
            yield Hypothesis(expected - _sum(terms, ranks), {"kind": "term missing", "sources": ranks})
    for about, known in neighbours(scene):
        others = _terms(known, scene)
        if not others:
            continue
        changes = []
        for term, other in zip(terms, others, strict=True):
            lies_there = term.clone()  # a call of another size overwrites the beginning of the same buffer
            lies_there[: other.numel()] = other[: expected.numel()]
            changes.append(lies_there - term)
        for r, change in enumerate(changes):
            yield Hypothesis(expected + change, {**about, "sources": [r]})
        for ranks in _likeliest(scene, where, changes):
            yield Hypothesis(expected + _sum(changes, ranks), {**about, "sources": ranks})


def _likeliest(scene: Scene, where: torch.Tensor, changes: list[torch.Tensor]) -> Iterator[list[int]]:
    """The sets of two ranks or more whose changes together account for most of these elements, most first."""
    if len(changes) > MOST_RANKS or not where.numel():
        return
    where = where[:: where.numel() // FEW_ELEMENTS + 1]
    got, expected = wide(scene.got)[where], wide(scene.expected)[where]
    sets = [list(s) for n in range(2, len(changes) + 1) for s in itertools.combinations(range(len(changes)), n)]
    chosen = torch.zeros(len(sets), len(changes), dtype=torch.float64)
    for i, ranks in enumerate(sets):
        chosen[i, ranks] = 1.0
    values = expected + chosen @ torch.stack([change[where] for change in changes])
    counts = near(values, got, rounded(wide(scene.allowed)[where] * SLACK, values, scene)).sum(1)
    for i in counts.argsort(descending=True, stable=True)[:LIKELIEST].tolist():
        if counts[i]:
            yield sets[i]


def _sum(terms: list[torch.Tensor], ranks: list[int]) -> torch.Tensor:
    return torch.stack([terms[r] for r in ranks]).sum(0)


def _terms(known: Known, scene: Scene) -> list[torch.Tensor]:
    """One addend per rank whose sum, or mean, is this rank's output; empty when no such terms are known."""
    target = known.expected[scene.rank]
    if target is None:
        return []
    total, W = wide(target), scene.world_size
    candidates: list[list[torch.Tensor | None]] = [known.alone]
    for i in range(min((len(x) for x in known.inputs), default=0)):
        inputs = [x[i][1] for x in known.inputs]
        candidates.append(list(inputs))
        if all(x.dim() and x.shape[0] % W == 0 for x in inputs):
            candidates.append([x.reshape(W, -1)[scene.rank] for x in inputs])
    scale = total.square().mean().sqrt() if total.numel() else torch.tensor(0.0)
    for chosen in candidates:
        flat = [wide(x) for x in chosen if x is not None]
        if len(flat) < W or any(x.numel() != total.numel() for x in flat):
            continue
        for divisor in (1, W):
            rest = torch.stack(flat).sum(0) / divisor - total
            if rest.square().mean().sqrt() < 0.02 * scale:
                return [x / divisor for x in flat]
    return []
