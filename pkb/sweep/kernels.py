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
    chosen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    skipped: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.py")):
        if path.name == "reference.py" and (folder / "workspace.yaml").is_file():
            continue
        found = match(path.name)
        text, reason = _read(path) if found.problem else (None, found.reason)
        if found.problem and text is not None:
            chosen[found.problem].append((path.name, text))
        else:
            skipped.append((path.name, reason))
    if not chosen:
        why = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UserError(f"{folder} holds no file named like 1_allreduce_cuda.py{why}")
    if (run / runs.FILE).exists():
        raise UserError(f"{run} is a run already; give a new directory")
    problems = sorted(chosen)
    attempts = max(len(kernels) for kernels in chosen.values())
    numbers = ",".join(str(int(name[:3])) for name in problems)
    settings = configuration.load([*overrides, f"run_dir={run}", f"problems=[{numbers}]", f"attempts={attempts}"], config)
    settings = dataclasses.replace(settings, models=[model])
    runs.check(run, settings)
    rows = [
        generation_row(_generation(AttemptKey(run.resolve().name, model, name, attempt), file, text))
        for name, kernels in chosen.items()
        for attempt, (file, text) in enumerate(kernels)
    ]
    with RunStore(run) as store:
        runs.write(run, settings, {"models": [{"name": model, "imported": str(folder)}], "problems": problems})
        store.append("generations", rows)
    return Imported(len(rows), len(chosen), tuple(skipped))


def _read(path: Path) -> tuple[str | None, str]:
    """The text of a file, or None with the reason."""
    try:
        return path.read_text(encoding="utf-8"), ""
    except UnicodeDecodeError:
        return None, "not UTF-8 text"
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"


def _generation(key: AttemptKey, file: str, text: str) -> Generation:
    return Generation(
        key, GenerationStatus.OK, "", "", answer=text, source=text, extraction=f"imported from {file}", cost_usd=0.0
    )
