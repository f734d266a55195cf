"""Workspaces: a folder in which any coding agent can work on one problem, with the feedback that a refinement gives.

It holds what the single-shot prompt says and nothing more. What ``check`` says decides nothing: ``pkb import`` takes the result, and it
is judged outside, on other inputs.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from pkb import config as configuration
from pkb import hardware, prompt
from pkb import problem as problems
from pkb.config import Config
from pkb.errors import UserError
from pkb.files import write_atomic
from pkb.records import FEEDBACK

SETTINGS = "workspace.yaml"
#: Parts of the configuration that the task names, and those that say how a candidate is judged: of these only what is not the default.
_NAMED = ("ranks", "device", "dtype", "size")
_JUDGED = ("prompt", "evaluation", "integrity", "sandbox")
_README = """# {title}

- `TASK.md`: what is asked for, with the hardware and the rules.
- `reference.py`: the function to replace.
- `{file}`: put your kernel here.
- `./check`: builds and runs it, and says what is wrong or how fast it is; `./check --json` says it as JSON. Each check draws other
  inputs. The final judgement is made elsewhere.
"""
_CHECK = """#!/bin/sh
PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} -m pkb check "$(dirname "$0")" "$@"
"""


def create(ident: str, out: Path, config: Config) -> Path:
    """Write the folder for one problem; returns where the kernel is to go.

    Raises UserError for an unknown problem or one that cannot run so, and when ``out`` is in use.
    """
    import yaml

    name = problems.resolve(ident)
    task = prompt.render(name, config)
    hardware.of(config)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is in use; give a new folder")
    file = f"{name}_{prompt.backend_of(config)}.py"
    given, usual = config.as_dict(), Config().as_dict()
    settings = {
        **{k: given[k] for k in _NAMED},
        **{k: changed for k in _JUDGED if (changed := _changed(given[k], usual[k]))},
        "problems": [str(int(name[:3]))],
    }
    root = os.fspath(Path(configuration.__file__).resolve().parents[1])
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / "TASK.md", task)
        write_atomic(out / "reference.py", problems.load(name).reference_source)
        write_atomic(out / "README.md", _README.format(title=problems.load(name).title, file=file))
        write_atomic(out / SETTINGS, yaml.safe_dump(settings, sort_keys=False))
        write_atomic(out / "check", _CHECK.format(root=shlex.quote(root), python=shlex.quote(sys.executable)))
        (out / "check").chmod(0o755)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    return out / file


def _changed(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """The entries that differ, groups likewise."""
    found = {k: _changed(v, usual[k]) if isinstance(v, dict) else v for k, v in given.items() if v != usual[k]}
    return {k: v for k, v in found.items() if v != {}}


def check(folder: Path) -> dict[str, Any]:
    """The feedback on the kernel in a workspace: ``text``, and the evaluation's facts under their columns' names.

    Raises UserError when ``folder`` is no workspace or holds no kernel, HarnessError when the machine fails.
    """
    from pkb.evaluate.one import judge_file
    from pkb.refine import feedback

    if not (folder / SETTINGS).is_file():
        raise UserError(f"{folder} is no workspace; make one with: pkb workspace --problem 1 --out {folder}")
    config = configuration.load(name=os.fspath(folder / SETTINGS))
    (name,) = config.problem_names()
    file = folder / f"{name}_{prompt.backend_of(config)}.py"
    if not file.is_file():
        raise UserError(f"there is no {file.name} in {folder} yet; write the kernel there")
    found = judge_file(file, name, config, FEEDBACK)
    facts = (
        "verdict",
        "detail",
        "stage",
        "max_error",
        "speedup",
        "speedup_low",
        "speedup_high",
        "reference_ms",
        "candidate_ms",
    )
    kept = {k: v for k, v in found.extra.items() if k in ("diagnosis", "profile", "mechanism", "traceback")}
    text = feedback.text(found, file.read_text(encoding="utf-8"), hardware.of(config), file=file.name)
    return {
        **{k: getattr(found, k) for k in facts},
        "verdict": found.verdict.value,
        "stage": found.stage.value,
        **kept,
        "text": text,
    }
