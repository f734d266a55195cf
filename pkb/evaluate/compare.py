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
from dataclasses import dataclass, field
from typing import Any

import torch

from pkb import tree
from pkb.problem import Problem, Tolerance

CHUNK = 1 << 22
OCTAVES = 96  # exponents from -64 to 31
FEW = 256  # an octave with fewer elements borrows the reference error of those above it
EPS = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.complex128: 2.0**-52,
    torch.complex64: 2.0**-23,
}


@dataclass(frozen=True)
class Calibration:
    """The reference's own errors for one output, relative to the RMS of the oracle."""

    rms: float = 0.0
    most: float = 0.0
    scale: float = 0.0  # rms of the oracle, finite elements
    octave_rms: torch.Tensor | None = None  # (OCTAVES,), relative to 2**exponent
    octave_most: torch.Tensor | None = None


@dataclass(frozen=True)
class Entry:
    """One compared output: where it is, what it should be, and how near is near enough."""

    path: str
    reference: Any
    oracle: torch.Tensor | None
    tolerance: Tolerance
    floor: float  # f eps, relative to the output
    calibration: Calibration


@dataclass(frozen=True)
class Expected:
    """Everything known about one trial: inputs, structure of the answer, and the entries to compare."""

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

    run: inputs -> (output, inputs after), both on the CPU.
    """
    before = tree.to_device(tree.clone(inputs), "cpu")
    output, after = run(tree.clone(inputs))
    compared = compared_leaves(problem, before, output, after)
    if problem.oracle == "upcast":
        wide_output, wide_after = run(tree.upcast(inputs))
        wide = compared_leaves(problem, before, wide_output, wide_after)
    else:
        wide = compared
    return _expected(problem, before, output, after, compared, wide, None, device)


def expect_like(problem: Problem, before: list[Any], answer: tuple[Any, Any], like: Expected) -> Expected:
    """What is expected of a call whose same-dtype reference answer is known, with another trial's calibration.

    The reference stands in for the oracle, so its own calibrated error is allowed once more.
    """
    before = tree.to_device(before, "cpu")
    compared = compared_leaves(problem, before, *answer)
    return _expected(problem, before, *answer, compared, compared, like, like.device)


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
        if i not in expected.mutates and now is not None and not _same_bits(was, now):
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
        truth = oracle if isinstance(oracle, torch.Tensor) and _is_inexact(oracle) and not tolerance.exact else None
        coarsest = max((_spacing(t.dtype) for t in tree.tensors(before) if _is_inexact(t)), default=0.0)
        floor = tolerance.floor_ulps * _eps(problem, output, after, reference) + tolerance.input_ulps * coarsest
        calibration = Calibration()
        if truth is not None and like is None:
            calibration = _calibrate(reference, truth, tolerance, device)
        elif truth is not None:
            assert like is not None
            known = like.entries[i].calibration if i < len(like.entries) else Calibration()
            calibration = Calibration(known.rms, known.most, _rms(truth), known.octave_rms, known.octave_most)
            tolerance = Tolerance(**{**vars(tolerance), "factor": tolerance.factor + 1})
        entries.append(Entry(path, reference, truth, tolerance, floor, calibration))
    mutates = frozenset(i for i, name in enumerate(names) if name in problem.mutates)
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
        if not (_same_bits(x, y) if isinstance(x, torch.Tensor) else type(x) is type(y) and x == y):
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
    reference = _dense(entry.reference)
    got = _dense(got)
    oracle = None if entry.oracle is None else _dense(entry.oracle)
    if entry.tolerance.unordered and reference.dim():
        order = _row_order(reference)
        reference, oracle = reference[order], None if oracle is None else oracle[order]
        got = got[_row_order(got)]
    if oracle is None:
        return _exact_error(entry.path, reference, got)
    return _float_error(entry, reference, got, oracle, device)


def _exact_error(path: str, reference: torch.Tensor, got: torch.Tensor) -> tuple[float, str]:
    a, b = _bits(reference), _bits(got)
    if torch.equal(a, b):
        return 0.0, ""
    wrong = (a != b).reshape(reference.numel(), -1).any(1) if reference.numel() else torch.tensor([True])
    if reference.is_floating_point() and not (wrong & ~((reference == got) & (reference == 0)).reshape(-1)).any():
        return 0.0, ""  # the sign of a zero carries no information here
    first = int(wrong.nonzero()[0])
    share = wrong.double().mean().item()
    return math.inf, _place(path, reference, got, first, f"{share:.1%} of the elements differ; compared exactly")


def _float_error(
    entry: Entry, reference: torch.Tensor, got: torch.Tensor, oracle: torch.Tensor, device: str
) -> tuple[float, str]:
    tolerance, calibration, floor = entry.tolerance, entry.calibration, entry.floor
    F, scale = tolerance.factor, calibration.scale
    most_allowed = F * calibration.most * scale
    worst, where, squares, count = 0.0, 0, 0.0, 0
    octave_squares = torch.zeros(OCTAVES, dtype=torch.float64, device=device)
    octave_counts = torch.zeros(OCTAVES, dtype=torch.float64, device=device)
    octave_most = calibration.octave_most.to(device) if calibration.octave_most is not None else octave_counts
    flat = (_real(reference), _real(got), _real(oracle))
    for start in range(0, flat[0].numel(), CHUNK):
        r, c, o = (x[start : start + CHUNK].to(device).to(torch.float64) for x in flat)
        odd = ~torch.isfinite(r)
        bad = torch.where(
            odd, ~(((c == r) | (c.isnan() & r.isnan())) | (torch.isfinite(c) & torch.isfinite(o))), ~torch.isfinite(c)
        )
        if bad.any():
            first = start + int(bad.nonzero()[0])
            return math.inf, _place(
                entry.path, reference, got, first, "NaN or infinity where the reference has none, or the reverse"
            )
        use = torch.isfinite(c) & torch.isfinite(o)
        e, o = (c - o).abs()[use], o[use]
        if tolerance.elementwise:
            octave = octave_of(o)
            octave_squares.index_add_(0, octave, e * e)
            octave_counts.index_add_(0, octave, torch.ones_like(e))
            unit = torch.exp2((octave - 64).to(torch.float64))
            limit = F * octave_most[octave] * unit + floor * o.abs() + 1e-300
        else:
            limit = most_allowed + floor * (o.abs() + scale) + 1e-300
        ratio = e / limit
        if ratio.numel() and (top := ratio.max().item()) > worst:
            worst, where = top, start + int(use.nonzero()[int(ratio.argmax())])
        squares += float((e * e).sum())
        count += e.numel()
    rms_allowed = F * calibration.rms * scale + floor / math.sqrt(12) * scale + 1e-300
    rms = math.sqrt(squares / count) / rms_allowed if count else 0.0
    if tolerance.elementwise and calibration.octave_rms is not None:
        unit = torch.exp2(torch.arange(OCTAVES, dtype=torch.float64) - 64)
        allowed = (F * calibration.octave_rms + 1.5 * floor / math.sqrt(12)) * unit
        counts = octave_counts.cpu()
        found = (octave_squares.cpu() / counts.clamp(min=1)).sqrt() / allowed
        rms = max(rms, float(found[counts >= FEW].max()) if (counts >= FEW).any() else 0.0)
    error = max(worst, rms)
    kind = f"element error {worst:.3g} x and RMS error {rms:.3g} x what is allowed"
    return error, _place(entry.path, reference, got, where, kind) if error > 1.0 else ""


def _calibrate(reference: Any, oracle: torch.Tensor, tolerance: Tolerance, device: str) -> Calibration:
    r, o = _real(_dense(reference)), _real(_dense(oracle))
    squares = errors = most = 0.0
    count = 0
    octave_squares, octave_counts, octave_most = (torch.zeros(OCTAVES, dtype=torch.float64, device=device) for _ in range(3))
    for start in range(0, o.numel(), CHUNK):
        a, b = (x[start : start + CHUNK].to(device).to(torch.float64) for x in (r, o))
        use = torch.isfinite(a) & torch.isfinite(b)
        a, b = a[use], b[use]
        e = (a - b).abs()
        squares += float((b * b).sum())
        errors += float((e * e).sum())
        most = max(most, float(e.max()) if e.numel() else 0.0)
        count += e.numel()
        if tolerance.elementwise:
            octave = octave_of(b)
            octave_squares.index_add_(0, octave, e * e)
            octave_counts.index_add_(0, octave, torch.ones_like(e))
            octave_most.scatter_reduce_(0, octave, e, "amax")
    scale = math.sqrt(squares / count) if count else 0.0
    if not tolerance.elementwise:
        return Calibration(_over(math.sqrt(errors / count) if count else 0.0, scale), _over(most, scale), scale)
    unit = torch.exp2(torch.arange(OCTAVES, dtype=torch.float64) - 64)
    octave_squares, octave_counts, octave_most = octave_squares.cpu(), octave_counts.cpu(), octave_most.cpu()
    octave_rms = _borrow((octave_squares / octave_counts.clamp(min=1)).sqrt(), octave_counts) / unit
    octave_most = _borrow(octave_most, octave_counts) / unit
    rms = math.sqrt(errors / count) if count else 0.0
    return Calibration(_over(rms, scale), _over(most, scale), scale, octave_rms, octave_most)


def _borrow(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The largest value of each octave's neighbours, and of as many octaves above it as hold FEW elements together.

    Elements far below the bulk of a sum are left over where large addends cancel: they carry the errors of larger partial sums,
    and whether the reference errs in one of a handful of them is chance.
    """
    close = torch.nn.functional.max_pool1d(values.reshape(1, 1, -1), 3, 1, 1)
    own, held, borrowed = values.tolist(), counts.tolist(), close.reshape(-1).tolist()
    for octave in range(OCTAVES):
        elements, above = 0.0, octave
        while elements < FEW and above < OCTAVES:
            borrowed[octave] = max(borrowed[octave], own[above])
            elements += held[above]
            above += 1
    return torch.tensor(borrowed, dtype=values.dtype)


def octave_of(x: torch.Tensor) -> torch.Tensor:
    return torch.frexp(x).exponent.clamp(-64, 31).long() + 64


def _over(value: float, scale: float) -> float:
    return value / scale if scale else 0.0


def _rms(x: torch.Tensor) -> float:
    flat = _real(_dense(x))
    total, count = 0.0, 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].to(torch.float64)
        part = part[torch.isfinite(part)]
        total += float((part * part).sum())
        count += part.numel()
    return math.sqrt(total / count) if count else 0.0


def _eps(problem: Problem, output: Any, after: Any, leaf: Any) -> float:
    """Spacing of the leaf's dtype; of an observation, that of the coarsest floating output."""
    if not isinstance(leaf, torch.Tensor):
        return 0.0
    if problem.observe is None:
        return _spacing(leaf.dtype)
    mutated = [v for p, v in zip(problem.parameters(), after, strict=False) if p.name in problem.mutates]
    return max((_spacing(t.dtype) for t in tree.tensors([output, mutated]) if _is_inexact(t)), default=2.0**-23)


def _spacing(dtype: torch.dtype) -> float:
    return EPS[dtype] if dtype in EPS else float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0


def _is_inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.is_sparse else x


def _real(x: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).reshape(-1)


def _bits(x: torch.Tensor) -> torch.Tensor:
    flat = _real(x)
    if flat.numel() < 2:  # counts as contiguous whatever its stride, but a view as bytes insists on stride 1
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.contiguous().view(torch.uint8)


def _same_bits(a: Any, b: Any) -> bool:
    ta, tb = tree.tensors(a), tree.tensors(b)
    return len(ta) == len(tb) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(_bits(_dense(x)), _bits(_dense(y)))
        for x, y in zip(ta, tb, strict=True)
    )


def _nbytes(t: torch.Tensor) -> int:
    return int(t.values().nbytes + t.indices().nbytes) if t.is_sparse else int(t.nbytes)


def _row_order(x: torch.Tensor) -> torch.Tensor:
    """The permutation that sorts the rows of x (dim 0) lexicographically."""
    rows = x.reshape(x.shape[0], -1)
    order = torch.arange(rows.shape[0])
    for column in reversed(range(rows.shape[1])):
        order = order[torch.argsort(rows[order, column], stable=True)]
    return order


def _place(path: str, want: torch.Tensor, got: torch.Tensor, flat: int, why: str) -> str:
    index, rest = [], flat // (2 if want.is_complex() else 1)
    for n in reversed(want.shape):
        index.append(rest % n)
        rest //= n
    at = tuple(reversed(index))
    place = f"[{', '.join(map(str, at))}]" if at else ""
    return f"{path}{place}: expected {_number(want[at])}, got {_number(got[at])} ({why})"


def _number(x: torch.Tensor) -> str:
    value = x.to(torch.complex128 if x.is_complex() else torch.float64).item() if _is_inexact(x) else x.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
