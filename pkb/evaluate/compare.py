"""Is an answer right? Errors are measured against a higher-precision oracle, in units of what the reference itself errs.

For a floating output with oracle o, same-dtype reference r and candidate c, and eps the dtype's spacing at 1:

* element rule: |c_i - o_i| <= F max|r - o| + f eps (|o_i| + rms(o))
* RMS rule: rms(c - o) <= F rms(r - o) + f u rms(o), u = eps / sqrt(12), the RMS error of one rounding

with F = ``Tolerance.factor`` and f = ``Tolerance.floor_ulps``; f eps grows by ``Tolerance.input_ulps`` spacings of the inputs'
dtype. The tolerance scales with the output, so zeros never pass, and with
the reference's own error, so an honest kernel that sums in another order is never wrong and a more accurate one is never worse.
``Tolerance.elementwise`` applies both rules within each octave of |o| (without the rms(o) term), so that small elements count.
NaN and infinity must stand where the reference has them. Integers, booleans and ``exact`` outputs are compared bitwise. Inputs that
the problem does not declare as mutated must come back bitwise unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pkb import tree
from pkb.evaluate import distance
from pkb.problem import Problem, Tolerance
from pkb.table import Table


@dataclass(frozen=True)
class Entry:
    """One compared output: where it is, what it should be, and how near is near enough."""

    path: str
    reference: Any
    oracle: torch.Tensor | None
    tolerance: Tolerance
    floor: float  # f eps, relative to the output
    calibration: distance.Calibration

    def measured(self, device: str) -> distance.Calibration:
        """The calibration, with the oracle's scale where that was not known."""
        if self.calibration.scale is not None or self.oracle is None:
            return self.calibration
        return replace(self.calibration, scale=distance.rms_of(self.oracle, device))


@dataclass(frozen=True)
class Expected:
    """Everything known about one trial: inputs, structure of the answer, and the entries to compare.

    after: inputs after the call; of a table its checksum, or the table where that is not known.
    """

    inputs: list[Any]
    output: Any
    after: list[Any]
    entries: list[Entry]
    mutates: frozenset[int]
    output_bytes: list[int]
    nbytes: int
    set_bytes: int
    names: list[str] = field(default_factory=list)
    problem: Problem | None = None
    device: str = "cpu"  # where the arithmetic of comparing happens


@dataclass(frozen=True)
class Judgement:
    """error: the largest error of any output in units of its tolerance. structure: False if shapes or dtypes are wrong."""

    structure: bool
    error: float
    detail: str

    @property
    def right(self) -> bool:
        return self.structure and self.error <= 1.0

    def as_dict(self) -> dict[str, Any]:
        return {"structure": self.structure, "error": self.error, "detail": self.detail, "right": self.right}


Run = Callable[[list[Any]], tuple[Any, Any]]


def expect(problem: Problem, inputs: list[Any], run: Run, device: str = "cpu") -> Expected:
    """Run the reference on copies of ``inputs`` (and on float64 copies), and calibrate every output's tolerance.

    run: inputs -> (output, inputs after), both on the CPU; None for an input that is as it was.
    """
    before = tree.to_device(tree.clone(inputs), "cpu")
    output, after = run(tree.clone(inputs))
    after = _unchanged_from(before, after)
    compared = compared_leaves(problem, before, output, after)
    if problem.oracle == "upcast":
        wide_output, wide_after = run(tree.upcast(inputs))
        wide = compared_leaves(problem, before, wide_output, _unchanged_from(before, wide_after))
    else:
        wide = compared
    return _expected(problem, before, output, after, compared, wide, None, device)


def expect_like(problem: Problem, before: list[Any], answer: tuple[Any, Any], like: Expected) -> Expected:
    """What is expected of a call whose same-dtype reference answer is known, with another trial's calibration.

    answer: output and inputs after the call, None for one that is as it was. The reference stands in for the oracle, so its own
    calibrated error is allowed once more.
    """
    before = tree.to_device(before, "cpu")
    output, after = answer[0], _unchanged_from(before, answer[1])
    compared = compared_leaves(problem, before, output, after)
    return _expected(problem, before, output, after, compared, compared, like, like.device)


def reference_error(expected: Expected) -> float:
    """The reference's own RMS error against the oracle, relative to the output's RMS; the worst output's."""
    return max((entry.calibration.rms for entry in expected.entries), default=0.0)


def judge(expected: Expected, output: Any, after: Any) -> Judgement:
    """Compare a candidate's answer (as it came over the wire) with what is expected.

    An input after the call that is None was not handed over and is not compared, unless the problem changes it.
    """
    after = [
        w if g is None and i not in expected.mutates else g for i, (w, g) in enumerate(zip(expected.after, after, strict=False))
    ]
    if fault := _structure_fault(expected, output, after):
        return Judgement(False, math.inf, fault)
    if fault := input_fault(expected, after):
        return Judgement(True, math.inf, fault)
    assert expected.problem is not None
    found = compared_leaves(expected.problem, expected.inputs, output, after)
    worst = Judgement(True, 0.0, "")
    for entry, (_, got) in zip(expected.entries, found, strict=True):
        error, detail = _error(entry, got, expected.device)
        if error > worst.error:
            worst = Judgement(True, error, detail if error > 1.0 else "")
    return worst


def input_fault(expected: Expected, after: Sequence[Any]) -> str:
    """Which input came back changed although the contract leaves it alone, in words; '' if none (None: not handed over)."""
    for i, (was, now) in enumerate(zip(expected.inputs, after, strict=False)):
        if isinstance(was, Table):
            was = expected.after[i]
        if i not in expected.mutates and now is not None and not distance.same_bits(was, now):
            return f"input '{expected.names[i]}' was changed; the contract leaves inputs unchanged"
    return ""


def _expected(
    problem: Problem, before: list[Any], output: Any, after: Any, compared: Any, wide: Any, like: Expected | None, device: str
) -> Expected:
    names = [p.name for p in problem.parameters()][: len(before)]
    tolerances = problem.tolerance
    entries = []
    for i, ((path, reference), (_, oracle)) in enumerate(zip(compared, wide, strict=True)):
        tolerance = tolerances if isinstance(tolerances, Tolerance) else tolerances[min(i, len(tolerances) - 1)]
        truth = oracle if isinstance(oracle, torch.Tensor) and distance.is_inexact(oracle) and not tolerance.exact else None
        coarsest = max((distance.spacing(t.dtype) for t in tree.tensors(before) if distance.is_inexact(t)), default=0.0)
        floor = tolerance.floor_ulps * _eps(problem, output, after, reference) + tolerance.input_ulps * coarsest
        calibration = distance.Calibration()
        if truth is not None and like is None:
            calibration = distance.calibrate(reference, truth, tolerance, device)
        elif truth is not None:
            assert like is not None
            known = like.entries[i].calibration if i < len(like.entries) else distance.Calibration()
            calibration = replace(known, scale=None)  # that of another trial; found when an answer has to be measured by it
            tolerance = Tolerance(**{**vars(tolerance), "factor": tolerance.factor + 1})
        entries.append(Entry(path, reference, truth, tolerance, floor, calibration))
    mutates = frozenset(i for i in mutated(problem) if i < len(before))
    outputs = tree.tensors([output, *(after[i] for i in mutates)])
    held = [*tree.tensors(before), *outputs, *(e.oracle for e in entries if e.oracle is not None)]
    inputs_bytes = sum(_nbytes(t) for t in tree.tensors(before))
    output_bytes = [_nbytes(t) for t in outputs]
    return Expected(
        before,
        output,
        after,
        entries,
        mutates,
        output_bytes,
        sum(_nbytes(t) for t in held),
        inputs_bytes + sum(output_bytes),
        names,
        problem,
        device,
    )


def mutated(problem: Problem) -> frozenset[int]:
    """Positions of the inputs that the problem changes."""
    return frozenset(i for i, parameter in enumerate(problem.parameters()) if parameter.name in problem.mutates)


def _unchanged_from(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Inputs after a call, with those before it for the ones that were not brought back."""
    return [was if now is None else now for was, now in zip(before, after, strict=True)]


def compared_leaves(problem: Problem, before: Sequence[Any], output: Any, after: Sequence[Any]) -> list[tuple[str, Any]]:
    """(path, leaf) of what counts: the problem's observation, or outputs and mutated inputs."""
    if problem.observe is not None:
        seen = problem.observe(tree.upcast(list(before)), tree.upcast(output), tree.upcast(list(after)))
        return [(f"observed{path}", leaf) for path, leaf in tree.leaves(seen)]
    found = [(f"output{path}", leaf) for path, leaf in tree.leaves(output)]
    for parameter, value in zip(problem.parameters(), after, strict=False):
        if parameter.name in problem.mutates:
            found += [(f"{parameter.name}{path}", leaf) for path, leaf in tree.leaves(value)]
    return found


def _structure_fault(expected: Expected, output: Any, after: Any) -> str:
    for what, want, got in (("output", expected.output, output), ("inputs after the call", expected.after, after)):
        wanted, given = list(tree.leaves(want)), list(tree.leaves(got))
        if [p for p, _ in wanted] != [p for p, _ in given]:
            return f"{what}: expected {_outline(want)}, got {_outline(got)}"
        for (path, w), (_, g) in zip(wanted, given, strict=True):
            if isinstance(w, torch.Tensor) != isinstance(g, torch.Tensor):
                return f"{what}{path}: expected {_outline(w)}, got {_outline(g)}"
            if isinstance(w, torch.Tensor) and (w.shape != g.shape or w.dtype != g.dtype or w.is_sparse != g.is_sparse):
                return f"{what}{path}: expected {_outline(w)}, got {_outline(g)}"
            if what == "output" and not isinstance(w, torch.Tensor) and type(w) is not type(g):
                return f"{what}{path}: expected {_outline(w)}, got {_outline(g)}"
    return ""


def same_answer(a: Any, b: Any) -> bool:
    """Whether two answers are the same to the last bit, structure included."""
    la, lb = list(tree.leaves(a)), list(tree.leaves(b))
    if [p for p, _ in la] != [p for p, _ in lb]:
        return False
    for (_, x), (_, y) in zip(la, lb, strict=True):
        if isinstance(x, torch.Tensor) != isinstance(y, torch.Tensor):
            return False
        if not (distance.same_bits(x, y) if isinstance(x, torch.Tensor) else type(x) is type(y) and x == y):
            return False
    return True


def _outline(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x, list | tuple) and not isinstance(x, torch.Size):
        return f"{type(x).__name__}({', '.join(_outline(i) for i in x[:8])}{', ...' if len(x) > 8 else ''})"
    if isinstance(x, dict) and len(x) == 1 and next(iter(x)) in ("not a plain tensor", "not plain data"):
        key, value = next(iter(x.items()))
        return f"{key} ({value})"
    return repr(x)[:80]


def _error(entry: Entry, got: Any, device: str) -> tuple[float, str]:
    """(error in units of tolerance, description of the first failing element)."""
    if not isinstance(entry.reference, torch.Tensor):
        same = entry.reference == got or (isinstance(got, float) and math.isclose(got, entry.reference, rel_tol=1e-6))
        return (0.0, "") if same else (math.inf, f"{entry.path}: expected {entry.reference!r}, got {got!r}")
    reference = distance.dense(entry.reference)
    got = distance.dense(got)
    oracle = None if entry.oracle is None else distance.dense(entry.oracle)
    if entry.tolerance.unordered and reference.dim():
        order = distance.row_order(reference)
        reference, oracle = reference[order], None if oracle is None else oracle[order]
        got = got[distance.row_order(got)]
    if oracle is None:
        return distance.exact_error(entry.path, reference, got)
    if entry.oracle is entry.reference and distance.same_bits(reference, got):
        return 0.0, ""  # most calls of most kernels, and measuring takes longer than anything else of a judgement
    known = entry.measured(device)
    return distance.float_error(entry.path, reference, got, oracle, entry.tolerance, known, entry.floor, device)


def _eps(problem: Problem, output: Any, after: Any, leaf: Any) -> float:
    """Spacing of the leaf's dtype; of an observation, that of the coarsest floating output."""
    if not isinstance(leaf, torch.Tensor):
        return 0.0
    if problem.observe is None:
        return distance.spacing(leaf.dtype)
    mutated = [v for p, v in zip(problem.parameters(), after, strict=False) if p.name in problem.mutates]
    return max((distance.spacing(t.dtype) for t in tree.tensors([output, mutated]) if distance.is_inexact(t)), default=2.0**-23)


def _nbytes(t: torch.Tensor) -> int:
    return int(t.values().nbytes + t.indices().nbytes) if t.is_sparse else int(t.nbytes)
