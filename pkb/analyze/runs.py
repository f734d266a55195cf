"""Runs as the analysis sees them: run.yaml, the two tables, and what is known of each problem."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import re
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb.errors import UserError

if TYPE_CHECKING:
    import polars as pl

#: Keys of run.yaml that are of no concern to whoever reads its results.
_LOCAL = frozenset({"run_dir", "address", "cache_dir", "command", "api_base", "key_env", "replay_run", "imported"})

#: Source projects that specs name in prose. Where one names two, the code came from the one that stands first here.
PROJECTS = (
    "VeOmni",
    "NeMo-RL",
    "Transformer Engine",
    "PhysicsNeMo",
    "GraphStorm",
    "DGL",
    "PyTorch Geometric",
    "TorchRec",
    "DeePMD-kit",
    "DINOv2",
    "Evo 2",
    "flash-linear-attention",
    "gsplat",
    "MAGI-1",
    "OpenCLIP",
    "Open-Sora",
    "SAM 3",
    "torch-harmonics",
    "DeepSeek-V3",
    "DeepSpeed",
    "Megatron-LM",
    "ring-flash-attention",
    "Hugging Face Transformers",
    "DistriFusion",
    "PyTorch FSDP",
)


@dataclass(frozen=True)
class Run:
    """A run directory that has been opened.

    label: names the run in every table; the run's own name, or the directory where two runs share a name.
    meta: run.yaml as plain data (run, fingerprint, config, versions, hardware, ...).
    """

    path: Path
    label: str
    meta: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        return self.meta.get("config") or {}

    @property
    def policy(self) -> str:
        """What torch.distributed may move in this run's candidates: none, metadata or any; empty when not recorded."""
        return str((self.config.get("integrity") or {}).get("collectives", ""))

    @property
    def several_turns(self) -> bool:
        """Whether attempts of this run may have more than one turn."""
        return int((self.config.get("agent") or {}).get("max_turns", 1)) > 1

    @property
    def hardware(self) -> str:
        """The hardware profile of the run's prompts, builds and rooflines; empty when nothing names one."""
        recorded = self.meta.get("hardware")
        if isinstance(recorded, Mapping) and recorded.get("profile"):
            return str(recorded["profile"])
        named = str((self.config.get("prompt") or {}).get("hardware", ""))
        usual = {"cpu": "cpu", "cuda": "h200"}  # as pkb.hardware.of reads "auto"
        return usual.get(str(self.config.get("device")), "") if named in ("auto", "") else named

    def described(self) -> dict[str, Any]:
        """What run.yaml says, as JSON takes it (dates become text), fit to be published.

        Paths, addresses and command lines of the machines that made the run say nothing of its results, and are left out.
        """
        plain: dict[str, Any] = json.loads(json.dumps(self.meta, default=str))
        return {k: v for k, v in _without(plain, _LOCAL).items() if k != "run"}

    def without_paths(self, note: str) -> str:
        """A note fit to be published: files of the run by their names from the run directory's own on."""
        name = f"{self.path.resolve().name}/"
        return note.replace(f"{self.path.resolve()}/", name).replace(f"{self.path}/", name)

    @property
    def planned(self) -> int | None:
        """Attempts per model that the run set out to make; None when it cannot be told, as of a folder of kernels."""
        if any("imported" in model for model in self.meta.get("models") or [] if isinstance(model, dict)):
            return None
        problems = self.meta.get("problems")
        attempts = self.config.get("attempts")
        return len(problems) * int(attempts) if isinstance(problems, list) and isinstance(attempts, int) else None


def _without(value: Any, names: Container[str]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, names) for k, v in value.items() if k not in names}
    return [_without(v, names) for v in value] if isinstance(value, list) else value


def open_run(path: Path | str) -> Run:
    """The run in that directory; raises UserError when there is none."""
    from pkb.store.run import read

    path = Path(path)
    if not path.is_dir():
        raise UserError(f"no run directory {path}; give one that `pkb sweep` has printed")
    meta = read(path)
    if not isinstance(meta["config"] or {}, dict):
        raise UserError(f"{path / 'run.yaml'} is no run description (its config is no mapping)")
    return Run(path, str(meta.get("run") or path.resolve().name), meta)


def open_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Several runs, each once, with labels that differ; raises UserError when one cannot be opened."""
    if not paths:
        raise UserError("name at least one run directory, e.g. pkb report outputs/default-0123456789ab")
    runs = [open_run(p) for p in dict.fromkeys(Path(p).resolve() for p in paths)]
    labels = [r.label for r in runs]
    return [replace(r, label=f"{r.label} ({r.path.name})" if labels.count(r.label) > 1 else r.label) for r in runs]


def evaluations(run: Path | str | Run) -> pl.LazyFrame:
    """All evaluations of a run, columns as ``pkb.store.schema.EVALUATIONS``; unreadable parts are skipped with a warning."""
    return _scan(run, "evaluations")


def generations(run: Path | str | Run) -> pl.LazyFrame:
    """All generations of a run, columns as ``pkb.store.schema.GENERATIONS``; unreadable parts are skipped with a warning."""
    return _scan(run, "generations")


def _scan(run: Path | str | Run, table: str) -> pl.LazyFrame:
    import polars as pl

    from pkb.store.reader import scan

    opened = run if isinstance(run, Run) else open_run(run)
    for name in missing_parts(opened.path / table):
        warnings.warn(f"{opened.path / table / name} is missing; its rows are left out", stacklevel=3)
    return scan(opened.path, table).with_columns(run=pl.lit(opened.label))


def missing_parts(folder: Path) -> list[str]:
    """Parts of a table that were there and are gone: the store numbers parts from 1 without gaps."""
    from pkb.store.layout import Slot, table_listing

    found = table_listing(folder)
    there = {slot.number for slot in (*found.parts, *found.journals)}
    return [Slot(number).part for number in range(1, found.last.number) if number not in there]


@contextlib.contextmanager
def naming_damage(runs: Sequence[Run]) -> Iterator[None]:
    """Turn a failure of Polars inside the block into a UserError that names the part that cannot be read, if one is to blame.

    A part without a footer is left out by the reader; this is for parts whose pages are damaged, which only reading shows.
    """
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        from pkb.store.reader import parts

        for path in (p for r in runs for table in ("evaluations", "generations") for p in parts(r.path, table)):
            try:
                pl.scan_parquet(path, glob=False).select(pl.all().count()).collect()
            except (pl.exceptions.PolarsError, OSError):
                message = f"{path} is damaged; move it away and run the same sweep again to fill the gap"
                raise UserError(message) from error
        raise


@contextlib.contextmanager
def once_told(runs: Sequence[Run]) -> Iterator[None]:
    """For reading runs again whose tables are made: what is missing is among their notes already, so warnings of it are silent."""
    with warnings.catch_warnings(action="ignore", category=UserWarning), naming_damage(runs):
        yield


@dataclass(frozen=True)
class About:
    """What tables say of a problem. category and project are "unknown" for a problem that this version does not have."""

    category: str = "unknown"
    project: str = "unknown"
    title: str = ""
    deviations: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@functools.cache
def about(problem: str) -> About:
    """Category, source project and title of NNN_stem, read from the text of its spec.py.

    The text is read, not executed: a spec may import torch, which a report must not wait for.
    """
    from pkb.problem import problems_root

    file = problems_root() / problem / "spec.py"
    if not re.fullmatch(r"\w+", problem) or not file.is_file():
        return About()
    found: dict[str, Any] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:  # PROBLEM = Problem(...)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Problem":
            found = {k.arg or "": _literal(k.value) for k in value.keywords}
    return About(
        found.get("category") or "unknown",
        project_of(found.get("source") or ""),
        found.get("title") or "",
        tuple(found.get("deviations") or ()),
    )


def project_of(source: str) -> str:
    """The project that a problem's ``source`` names first in PROJECTS; "generic" where it says so, or its opening words."""
    if source.startswith("generic"):
        return "generic"
    named = next((p for p in PROJECTS if p.lower() in source.lower()), None)
    return named or re.split(r"\s*[(,;:]", source, maxsplit=1)[0].strip() or "unknown"


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def describe(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The frame with ``category`` and ``project`` of each problem added (kept where they exist already)."""
    import polars as pl

    missing = [c for c in ("category", "project") if c not in frame.collect_schema().names()]
    if not missing:
        return frame
    names = frame.select(pl.col("problem").unique()).collect()["problem"].to_list()
    facts = {name: about(name) for name in names}
    return frame.with_columns(
        pl.col("problem")
        .replace_strict({n: getattr(f, c) for n, f in facts.items()}, default="unknown", return_dtype=pl.String)
        .alias(c)
        for c in missing
    )
