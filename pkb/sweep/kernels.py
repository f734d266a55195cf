"""Existing kernels as the generations of a run, so that they are judged and reported like a model's."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pkb import config as configuration
from pkb.errors import UserError
from pkb.records import AttemptKey, Generation
from pkb.store import run as runs
from pkb.store.rows import generation_row
from pkb.store.writer import RunStore
from pkb.sweep.kernel_names import match
from pkb.verdict import GenerationStatus


@dataclass(frozen=True)
class Imported:
    """files: how many kernels became generations. problems: how many problems they cover. skipped: (file, why) of the others."""

    files: int
    problems: int
    skipped: tuple[tuple[str, str], ...]


def import_folder(folder: Path, model: str, run: Path, overrides: Sequence[str] = (), config: str = "default") -> Imported:
    """Make a new run of the kernels in a folder.

    A file's name says which problem it is for (``kernel_names``); several files for one problem are its attempts, in order of
    their names. Raises UserError when no file fits a problem, or the run directory is in use.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds kernels named NN_stem_backend.py")
    chosen: dict[str, list[Path]] = defaultdict(list)
    skipped: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.py")):
        found = match(path.name)
        if found.problem:
            chosen[found.problem].append(path)
        else:
            skipped.append((path.name, found.reason))
    if not chosen:
        why = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UserError(f"{folder} holds no file named like 1_allreduce_cuda.py{why}")
    if (run / runs.FILE).exists():
        raise UserError(f"{run} is a run already; give a new directory")
    problems = sorted(chosen)
    attempts = max(len(paths) for paths in chosen.values())
    numbers = ",".join(str(int(name[:3])) for name in problems)
    settings = configuration.load([*overrides, f"run_dir={run}", f"problems=[{numbers}]", f"attempts={attempts}"], config)
    settings = dataclasses.replace(settings, models=[model])
    runs.check(run, settings)
    rows = [
        generation_row(
            _generation(AttemptKey(run.resolve().name, model, name, attempt), paths[attempt] if attempt < len(paths) else None)
        )
        for name, paths in chosen.items()
        for attempt in range(attempts)
    ]
    with RunStore(run) as store:
        runs.write(run, settings, {"models": [{"name": model, "imported": str(folder)}], "problems": problems})
        store.append("generations", rows)
    return Imported(sum(len(paths) for paths in chosen.values()), len(chosen), tuple(skipped))


def _generation(key: AttemptKey, path: Path | None) -> Generation:
    if path is None:
        return Generation(key, GenerationStatus.EMPTY, "", "", extraction="fewer kernels than for other problems")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return Generation(
        key, GenerationStatus.OK, "", "", answer=text, source=text, extraction=f"imported from {path.name}", cost_usd=0.0
    )
