"""How far an answer is from the oracle, element by element and as a whole, in units of what is allowed (``pkb.evaluate.compare``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from pkb import tree
from pkb.problem import Tolerance

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
    scale: float | None = 0.0  # rms of the oracle, finite elements; None: not known yet
    octave_rms: torch.Tensor | None = None  # (OCTAVES,), relative to 2**exponent
    octave_most: torch.Tensor | None = None


def exact_error(path: str, reference: torch.Tensor, got: torch.Tensor) -> tuple[float, str]:
    """0, or infinity and the first element whose bits differ."""
    a, b = bits(reference), bits(got)
    if torch.equal(a, b):
        return 0.0, ""
    wrong = (a != b).reshape(reference.numel(), -1).any(1) if reference.numel() else torch.tensor([True])
    if reference.is_floating_point() and not (wrong & ~((reference == got) & (reference == 0)).reshape(-1)).any():
        return 0.0, ""  # the sign of a zero carries no information here
    first = int(wrong.nonzero()[0])
    share = wrong.double().mean().item()
    return math.inf, _place(path, reference, got, first, f"{share:.1%} of the elements differ; compared exactly")


def float_error(
    path: str,
    reference: torch.Tensor,
    got: torch.Tensor,
    oracle: torch.Tensor,
    tolerance: Tolerance,
    calibration: Calibration,
    floor: float,
    device: str,
) -> tuple[float, str]:
    """The larger of element and RMS error in units of what is allowed, and where the first is largest if that is above 1."""
    F, scale = tolerance.factor, calibration.scale or 0.0
    most_allowed = F * calibration.most * scale
    worst, where, squares, count = 0.0, 0, 0.0, 0
    octave_squares = torch.zeros(OCTAVES, dtype=torch.float64, device=device)
    octave_counts = torch.zeros(OCTAVES, dtype=torch.float64, device=device)
    octave_most = calibration.octave_most.to(device) if calibration.octave_most is not None else octave_counts
    flat = (real(reference), real(got), real(oracle))
    for start in range(0, flat[0].numel(), CHUNK):
        r, c, o = (x[start : start + CHUNK].to(device).to(torch.float64) for x in flat)
        odd = ~torch.isfinite(r)
        bad = torch.where(
            odd, ~(((c == r) | (c.isnan() & r.isnan())) | (torch.isfinite(c) & torch.isfinite(o))), ~torch.isfinite(c)
        )
        if bad.any():
            first = start + int(bad.nonzero()[0])
            return math.inf, _place(path, reference, got, first, "NaN or infinity where the reference has none, or the reverse")
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
    kind = f"element error {_times(worst)} and RMS error {_times(rms)} what is allowed"
    return error, _place(path, reference, got, where, kind) if error > 1.0 else ""


def _times(error: float) -> str:
    return f"{error:.3g} x" if error < 1e12 else "beyond any multiple of"  # nothing but the oracle's own value is allowed


def calibrate(reference: Any, oracle: torch.Tensor, tolerance: Tolerance, device: str) -> Calibration:
    """The reference's errors against the oracle."""
    r, o = real(dense(reference)), real(dense(oracle))
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
    """The binary exponent of each element, shifted to an index."""
    return torch.frexp(x).exponent.clamp(-64, 31).long() + 64


def _over(value: float, scale: float) -> float:
    return value / scale if scale else 0.0


def rms_of(x: torch.Tensor, device: str) -> float:
    """The RMS of the finite elements, computed on ``device``."""
    flat = real(dense(x))
    total, count = 0.0, 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].to(device).to(torch.float64)
        part = part[torch.isfinite(part)]
        total += float((part * part).sum())
        count += part.numel()
    return math.sqrt(total / count) if count else 0.0


# -- tensors of any kind as numbers and bytes ----------------------------------------------------------------------------


def spacing(dtype: torch.dtype) -> float:
    return EPS[dtype] if dtype in EPS else float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0


def is_inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.is_sparse else x


def real(x: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).reshape(-1)


def bits(x: torch.Tensor) -> torch.Tensor:
    flat = real(x)
    if flat.numel() < 2:  # counts as contiguous whatever its stride, but a view as bytes insists on stride 1
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.contiguous().view(torch.uint8)


def same_bits(a: Any, b: Any) -> bool:
    ta, tb = tree.tensors(a), tree.tensors(b)
    return len(ta) == len(tb) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(bits(dense(x)), bits(dense(y)))
        for x, y in zip(ta, tb, strict=True)
    )


def row_order(x: torch.Tensor) -> torch.Tensor:
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
    value = x.to(torch.complex128 if x.is_complex() else torch.float64).item() if is_inexact(x) else x.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
