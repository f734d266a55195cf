"""From a wrong answer to the mistake behind it, in the trusted ranks.

``of_rank`` runs in all of them at once, because a rank's answer can only be understood beside what its peers had and should have
got; ``pkb.evaluate.diagnosis`` puts the ranks' findings together. It never changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pkb import tree
from pkb.evaluate import compare, distance, patterns, replayed
from pkb.evaluate.collectives import intercept
from pkb.evaluate.scene import Known, Scene

#: What a rank hands to its peers for one call; a larger output is diagnosed from the rank's own data.
SHARED_BYTES = 64 << 20
#: How many calls before and after the wrong one are considered.
BEFORE, AFTER = 2, 1


@dataclass(frozen=True)
class Call:
    """One call that was judged: what was expected of it, and what came."""

    expected: compare.Expected
    output: Any
    after: Any


Run = Callable[[list[Any]], tuple[Any, Any]]


def of_rank(calls: Sequence[Call], at: int, run: Run, rank: int, world_size: int) -> dict[str, Any]:
    """What this rank knows about the answer to call ``at``; every rank of the trusted group must ask at the same time.

    calls: of one burst, in order, or those in isolation before this one. run: the reference, on inputs as they are drawn.
    """
    call = calls[at]
    window = range(max(0, at - BEFORE), min(len(calls), at + AFTER + 1))
    around = {i: _shared(calls[i].expected, run) for i in window}
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, around)
    mistaken = _mistaken(call.expected, run, world_size) if all((a[at] or {}).get("whole") for a in gathered) else []
    judged = compare.judge(call.expected, call.output, call.after)
    if judged.right:
        return {"right": True}
    try:
        arguments = _numbers(call.expected)
        return {"right": False, "arguments": arguments, **_described(call, judged, at, gathered, mistaken, rank, world_size)}
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
    ) as error:  # what candidates return is odd in more ways than foreseen
        return {"right": False, "failed": f"{type(error).__name__}: {error}"[:300]}


def _described(
    call: Call, judged: compare.Judgement, at: int, gathered: list[Any], mistaken: list[Any], rank: int, world_size: int
) -> dict[str, Any]:
    """The worst output of a wrong answer: which, where, and what accounts for it."""
    if not judged.structure or call.expected.problem is None:
        return {}
    observed = compare.compared_leaves(call.expected.problem, call.expected.inputs, call.output, call.after)
    worst: tuple[float, dict[str, Any]] | None = None
    for index, (entry, (_, got)) in enumerate(zip(call.expected.entries, observed, strict=True)):
        likewise = [(about, leaves[index]) for about, leaves in mistaken if index < len(leaves)]
        scene = _scene(entry, got, index, at, gathered, likewise, rank, world_size)
        if scene is None or not patterns.wrong_elements(scene).any():
            continue
        where = patterns.location(scene)
        if worst is None or where["share"] > worst[0]:
            worst = (where["share"], {"output": entry.path, "where": where, "findings": patterns.findings(scene)})
    return worst[1] if worst else {}


def _shared(expected: compare.Expected, run: Run) -> dict[str, Any] | None:
    """What peers may need of this rank's part in a call: what it should get, what it would get alone, its inputs."""
    if expected.problem is None:
        return None
    names = expected.names
    inputs = [
        (f"{name}{path}", leaf)
        for name, value in zip(names, expected.inputs, strict=True)
        for path, leaf in tree.leaves(value)
        if isinstance(leaf, torch.Tensor) and not leaf.is_sparse
    ]
    shared: dict[str, Any] = {
        "expected": [_plain(e.reference) for e in expected.entries],
        "alone": _alone(expected, run),
        "inputs": inputs,
    }
    held = sum(t.nbytes for t in [*shared["expected"], *shared["alone"], *(t for _, t in inputs)] if t is not None)
    if held > SHARED_BYTES:
        return {"expected": [None] * len(expected.entries), "alone": [], "inputs": []}
    return {**shared, "whole": True}


def _numbers(expected: compare.Expected) -> dict[str, int | float | bool]:
    """The numbers among a call's arguments: a root, a length or an epsilon that varies is easily taken for a constant."""
    found = dict(zip(expected.names, expected.inputs, strict=True)) if expected.problem is not None else {}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float)}


def _alone(expected: compare.Expected, run: Run) -> list[torch.Tensor | None]:
    """The reference's answer with every collective delivering this rank's own data; empty where it has none."""
    assert expected.problem is not None
    try:
        with intercept(lambda op: op.locally("copies")):
            output, after = run(tree.clone(expected.inputs))
        leaves = compare.compared_leaves(expected.problem, expected.inputs, output, after)
    except Exception:  # a reference may rely on what peers send, e.g. on sizes; then it has no answer alone
        return []
    return [_plain(leaf) for _, leaf in leaves]


def _mistaken(expected: compare.Expected, run: Run, world_size: int) -> list[tuple[dict[str, Any], list[torch.Tensor | None]]]:
    """The reference's answers with mistakes in its collectives; every rank must ask at the same time."""
    brought = replayed.delivered(lambda: run(tree.clone(expected.inputs)))
    found = []
    for about, (output, after) in replayed.mistaken(lambda: run(tree.clone(expected.inputs)), brought, world_size):
        assert expected.problem is not None
        leaves = compare.compared_leaves(expected.problem, expected.inputs, output, after)
        found.append((about, [_plain(leaf) for _, leaf in leaves]))
    return found


def _scene(
    entry: compare.Entry,
    got: Any,
    index: int,
    at: int,
    gathered: Sequence[Any],
    mistaken: list[Any],
    rank: int,
    world_size: int,
) -> Scene | None:
    reference, got = _plain(entry.reference), _plain(got)
    if reference is None or got is None or reference.shape != got.shape or not reference.numel():
        return None

    def known(i: int) -> Known:
        sides = [around.get(i) or {} for around in gathered]
        pick = lambda side, key: side[key][index] if index < len(side.get(key, ())) else None  # noqa: E731
        return Known(
            [pick(side, "expected") for side in sides],
            [pick(side, "alone") for side in sides],
            [side.get("inputs", []) for side in sides],
        )

    return Scene(
        rank,
        world_size,
        reference,
        got,
        allowed_error(entry, reference),
        known(at),
        [known(i) for i in range(at - 1, max(-1, at - 1 - BEFORE), -1)],
        [known(i) for i in range(at + 1, at + 1 + AFTER) if all(i in (around or {}) for around in gathered)],
        [(about, x) for about, x in mistaken if x is not None],
    )


def allowed_error(entry: compare.Entry, reference: torch.Tensor) -> torch.Tensor:
    """By element, the largest error that the element rule of ``compare`` passes; zeros where the comparison is exact."""
    if entry.oracle is None:
        return torch.zeros(reference.shape, dtype=torch.float64)
    # the reference stands in for the oracle here, so its own error is allowed once more
    factor, known, size = entry.tolerance.factor + 1, entry.measured("cpu"), reference.to(torch.float64).abs()
    if entry.tolerance.elementwise and known.octave_most is not None:
        octave = distance.octave_of(size)
        return factor * known.octave_most.cpu()[octave] * torch.exp2(octave - 64.0) + entry.floor * size
    scale = known.scale or 0.0
    return factor * known.most * scale + entry.floor * (size + scale)


def _plain(x: Any) -> torch.Tensor | None:
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x) if isinstance(x, bool | int | float) else None
    x = (x.to_dense() if x.is_sparse else x).detach()
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
