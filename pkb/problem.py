"""Problems: what they are, how they are found, and how one draws its inputs.

A problem is one folder, ``problems/NNN_stem/``, with two files. ``reference.py`` is the text that a model reads;
``spec.py`` is what only the harness reads and defines ``PROBLEM``. Nothing here imports torch until inputs are drawn,
so listing problems is instant.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pkb.draw import Draw
from pkb.errors import UserError

CATEGORIES = (
    "collective primitive",
    "tensor parallel",
    "sequence parallel",
    "context parallel",
    "pipeline parallel",
    "data parallel",
    "expert parallel",
    "FSDP/ZeRO",
    "vocab parallel",
    "graph parallel",
    "geometric/spatial",
    "other",
)

#: What each trial tests beyond a plain draw; trial ``t`` of a judgement has variant ``VARIANTS[t % len(VARIANTS)]``.
#: plain: nominal sizes, normal data. integers: small integers whose sums are exact. wide: non-integers over a large
#: dynamic range. ragged: sizes that divide neither by the world size nor by a vector width, where the contract allows.
#: edge: zero rows, empty ranks, ties, values near eps, whatever the contract's corner is.
VARIANTS = ("plain", "integers", "wide", "ragged", "edge")

#: Trials from this index on are drawn for timing: always plain, always at the nominal size.
TIMING_TRIAL = 1_000_000


@dataclass(frozen=True)
class Cost:
    """Work of one rank in one call, by the way of doing it that the problem states (bytes and operations, not time).

    sent_bytes: bytes this rank sends over the interconnect. flops: floating-point operations.
    memory_bytes: device memory read and written at least once. footprint_bytes: peak device memory that the reference
    holds at once (inputs, outputs, temporaries), used to check that a size fits a GPU. least_sent_bytes: what any algorithm
    must send, where that is less than sent_bytes (None: it is not); the physical bound uses it.
    """

    sent_bytes: float
    flops: float
    memory_bytes: float
    footprint_bytes: float
    least_sent_bytes: float | None = None

    @property
    def bound_bytes(self) -> float:
        """Bytes this rank must send whatever the algorithm: a call that took less time than these need is impossible."""
        return self.sent_bytes if self.least_sent_bytes is None else self.least_sent_bytes


@dataclass(frozen=True)
class Tolerance:
    """How one output tensor is compared; ``pkb.evaluate.compare`` derives the rule.

    exact: bitwise equality (pure data movement); integers and booleans are always compared so.
    factor: the candidate's error against the oracle may be this many times the reference's own error.
    floor_ulps: added to that, in units in the last place of the output's RMS.
    input_ulps: added to that, in units in the last place of the coarsest floating input, for outputs that are finer than the
        arithmetic behind them (a loss in float32 of bfloat16 logits).
    elementwise: errors are also compared within each octave of the oracle's magnitude, so that small elements count
        (sums of a few terms without cancellation between large ones).
    unordered: rows (dim 0) may come in any order.
    """

    exact: bool = False
    factor: float = 6.0
    floor_ulps: float = 2.0
    input_ulps: float = 0.0
    elementwise: bool = False
    unordered: bool = False


@dataclass(frozen=True)
class GroupRef:
    """A process group named by its ranks (global, in order); whoever calls ``solution`` puts its own group there."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """The part of a draw that needs no data: enough for cost, sizes and admissibility.

    size: the dimensions, by attribute (``ctx.size.M``). dtype: ``torch.dtype``'s name, e.g. "bfloat16".
    """

    world_size: int
    size: SimpleNamespace
    dtype_name: str = "bfloat16"

    @property
    def element_size(self) -> int:
        """Bytes of one element of the requested dtype."""
        return {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}[self.dtype_name]


@dataclass(frozen=True)
class Context(Shape):
    """One draw: everything that ``make_inputs`` may depend on.

    ``own`` draws numbers that differ by rank, ``shared`` numbers equal on all ranks, ``of(r)`` the numbers that rank r
    will draw from its ``own`` (from the start), for inputs that must agree with what peers hold. All differ by trial.
    """

    rank: int = 0
    trial: int = 0
    device: str = "cpu"
    key: bytes = b""  # keyed hash of (run secret, problem, trial); never leaves trusted processes
    own: Draw = field(default=None, repr=False)  # type: ignore[assignment]
    shared: Draw = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.own is None:
            object.__setattr__(self, "own", self.of(self.rank))
        if self.shared is None:
            object.__setattr__(self, "shared", self._draw(b"shared"))

    def of(self, rank: int) -> Draw:
        """A fresh generator equal to the one that ``rank`` has as its ``own``."""
        return self._draw(b"rank%d" % rank)

    def stream(self, name: str, shared: bool = True) -> Draw:
        """A further independent generator, by name (equal on all ranks unless ``shared`` is false)."""
        return self._draw(name.encode() + (b"" if shared else b"/rank%d" % self.rank))

    def group(self, ranks: Sequence[int]) -> GroupRef:
        """A process group over these global ranks, in this order, as an input of ``solution``."""
        return GroupRef(tuple(int(r) for r in ranks))

    @property
    def variant(self) -> str:
        """One of VARIANTS: what this trial is for."""
        return "plain" if self.trial >= TIMING_TRIAL else VARIANTS[self.trial % len(VARIANTS)]

    @property
    def dtype(self) -> Any:
        """The requested floating dtype as a ``torch.dtype``."""
        import torch

        return getattr(torch, self.dtype_name)

    def _draw(self, label: bytes) -> Draw:
        return Draw(self.key, label, self.variant, self.dtype_name, self.device)


@dataclass(frozen=True)
class Problem:
    """One problem as its spec.py states it.

    sizes: preset name -> dimension -> value; every preset has the same dimensions. Values are ints.
    make_inputs: context -> the positional arguments of ``solution`` (tensors, numbers, strings, None, GroupRef, torch.Size,
        nn.Linear and lists, tuples, dicts of these; ``pkb.table.Table`` for a tensor too large to be drawn whole).
    cost: shape -> Cost of one call. mutates: names of parameters that the reference changes in place.
    fixed: names of parameters whose rows must stay where they are for the inputs to be valid.
    admissible: shape -> None, or one line saying why this world size or size cannot be.
    tolerance: one Tolerance for all outputs, or one per output tensor in flattened order (compared outputs first, then
        the mutated inputs in order of ``mutates``).
    observe: (inputs before, outputs, inputs after) -> what is compared in place of the raw outputs, for problems where
        only a change counts (an optimiser step). Runs in trusted processes on float64 copies.
    oracle: "upcast": the reference on float64 copies of the inputs is the truth and the same-dtype reference calibrates
        the tolerance. "reference": rounding to the dtype is itself the contract (quantisation, sorting, selection), so
        the same-dtype reference is the truth.
    deviations: one line for each respect in which inputs or contract differ from the original benchmark's, on purpose.
    """

    title: str
    category: str
    source: str
    sizes: Mapping[str, Mapping[str, int]]
    make_inputs: Callable[[Context], Sequence[Any]]
    cost: Callable[[Shape], Cost]
    mutates: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    admissible: Callable[[Shape], str | None] = lambda shape: None
    tolerance: Tolerance | tuple[Tolerance, ...] = Tolerance()
    observe: Callable[[Sequence[Any], Any, Sequence[Any]], Any] | None = None
    oracle: str = "upcast"
    deviations: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    # filled by load()
    name: str = ""
    folder: Path = Path()

    @property
    def id(self) -> int:
        """1..87."""
        return int(self.name.split("_", 1)[0])

    @property
    def reference_path(self) -> Path:
        return self.folder / "reference.py"

    @property
    def reference_source(self) -> str:
        """The text that models see."""
        return self.reference_path.read_text(encoding="utf-8")

    def reference(self) -> Callable[..., Any]:
        """The reference's ``solution``; imports torch."""
        return _load_module(self.reference_path, f"pkb_reference_{self.name}").solution

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of ``solution``, in order, read from the source without importing torch."""
        from pkb.candidate import parameters_of  # the same reader judges candidates

        return parameters_of(self.reference_source)

    def dimensions(self, preset: str, overrides: Mapping[str, int] | None = None) -> SimpleNamespace:
        """The dimensions of a preset, with single ones replaced.

        Raises UserError for an unknown preset or dimension, naming those that exist.
        """
        if preset not in self.sizes:
            raise UserError(f"{self.name} has no size '{preset}'; known sizes: {', '.join(self.sizes)}")
        dims = dict(self.sizes[preset])
        for key, value in (overrides or {}).items():
            if key not in dims:
                raise UserError(f"{self.name} has no dimension '{key}'; its dimensions: {', '.join(dims)}")
            dims[key] = value
        return SimpleNamespace(**dims)

    def shape(self, world_size: int, preset: str, dtype: str = "bfloat16", overrides: Mapping[str, int] | None = None) -> Shape:
        """A Shape that has been checked for admissibility; raises UserError with the reason when it is not."""
        shape = Shape(world_size, self.dimensions(preset, overrides), dtype)
        if world_size < 2:
            raise UserError(f"ranks={world_size}: a multi-GPU kernel needs at least 2 ranks; set ranks=2 or more")
        if reason := self.admissible(shape):
            raise UserError(f"{self.name} cannot run on {world_size} ranks at this size: {reason}")
        return shape

    def context(self, shape: Shape, rank: int, trial: int, key: bytes, device: str = "cpu") -> Context:
        """The draw of one (rank, trial); ``key`` is the keyed hash of (run secret, problem, trial)."""
        return Context(shape.world_size, shape.size, shape.dtype_name, rank, trial, device, key)


def problems_root() -> Path:
    """Where problems/ lies: beside the package (checkout, PYTHONPATH) or inside it (installed wheel)."""
    here = Path(__file__).resolve().parent
    for root in (here.parent / "problems", here / "_data" / "problems"):
        if root.is_dir():
            return root
    raise UserError("no problems/ folder beside the pkb package; reinstall pkb or run from a checkout")


@functools.cache
def names() -> tuple[str, ...]:
    """All problems as NNN_stem, in order of their number."""
    return tuple(
        sorted(p.name for p in problems_root().iterdir() if re.fullmatch(r"\d{3}_\w+", p.name) and (p / "spec.py").is_file())
    )


def resolve(ident: int | str) -> str:
    """The NNN_stem of a number (``81``, ``"081"``), a stem or a full name, whose zeros may be left out.

    Raises UserError, naming the nearest, for none of these, and for a number and a name of different problems.
    """
    text = str(ident).strip()
    by_number = {int(name[:3]): name for name in names()}
    by_stem = {name.split("_", 1)[1]: name for name in names()}
    if text in by_stem:
        return by_stem[text]
    parts = re.fullmatch(r"([0-9]{1,9})(?:_(.+))?", text)
    numbered = by_number.get(int(parts[1])) if parts else None
    named = by_stem.get(parts[2]) if parts and parts[2] else numbered
    if numbered and numbered == named:
        return numbered
    if parts and numbered and named:
        raise UserError(f"'{text}' is ambiguous: {parts[1]} is {numbered}, the name is {named}'s; give one of these")
    near = difflib.get_close_matches(text, [*names(), *by_stem], 1, 0.3)
    hint = f"; did you mean '{near[0]}'?" if near else f"; there are {len(names())}, see `pkb problems`"
    raise UserError(f"no problem '{text}'{hint}")


@functools.cache
def load(ident: int | str) -> Problem:
    """The problem of that number, stem or name.

    Raises UserError if there is none.
    """
    from dataclasses import replace

    name = resolve(ident)
    folder = problems_root() / name
    problem = _load_module(folder / "spec.py", f"pkb_spec_{name}").PROBLEM
    return replace(problem, name=name, folder=folder)


def numel(*dims: float) -> float:
    """Product of dimensions, for cost formulas."""
    return math.prod(dims)


def _load_module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, os.fspath(path))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
