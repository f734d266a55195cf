"""run.yaml: what a run is, written when it starts and checked when it continues."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pkb import __version__
from pkb.config import Config
from pkb.errors import UserError
from pkb.files import TEMPORARY_SUFFIX, write_atomic
from pkb.store.schema import SCHEMA_VERSION, TABLES

FILE = "run.yaml"
_RECORDED_PACKAGES = ("torch", "ray", "litellm", "pyarrow", "polars", "numpy", "safetensors")


def read(run: Path) -> dict[str, Any]:
    """The content of run.yaml; raises UserError when ``run`` is no run directory."""
    import yaml

    try:
        data = yaml.safe_load((run / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{run} is no run directory (no {FILE}); give one that `pkb sweep` has printed") from None
    except yaml.YAMLError as error:
        raise UserError(f"{run / FILE} is damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict) or "config" not in data:
        raise UserError(f"{run / FILE} is no run description (it has no key 'config')")
    return data


def check(run: Path, config: Config) -> None:
    """Raise UserError when the directory holds something else than this configuration's run, or nothing that is a run."""
    if not run.exists():
        return
    if not run.is_dir():
        raise UserError(f"run_dir={run} is a file; give a directory")
    if not (run / FILE).exists():
        if any(not _ours_and_empty(entry) for entry in run.iterdir()):
            raise UserError(f"run_dir={run} holds other files and no {FILE}; give an empty or a new directory")
        return
    there = read(run)
    if there.get("fingerprint") == config.fingerprint():
        return
    differences = _differences(there["config"], config.as_dict())
    shown = "; ".join(f"{k}: {a!r} there, {b!r} now" for k, a, b in differences[:3]) or "made by another version of pkb"
    raise UserError(f"run_dir={run} holds a run of another configuration ({shown}); choose another run_dir")


def write(run: Path, config: Config, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write run.yaml for a new run, or add this session to it; returns its content.

    more: what else belongs to the description of the run (models, problems).
    """
    import yaml

    check(run, config)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    existing = read(run) if (run / FILE).exists() else {}
    data = {
        "run": existing.get("run") or run.resolve().name,
        "id": existing.get("id") or uuid.uuid4().hex,
        "fingerprint": config.fingerprint(),
        "created": existing.get("created") or now,
        "schema_version": SCHEMA_VERSION,
        "config": config.as_dict(),
        "hardware": _hardware(config),
        **(more or {}),
        "sessions": [*existing.get("sessions", ()), {"started": now, **versions()}],
    }
    run.mkdir(parents=True, exist_ok=True)
    write_atomic(run / FILE, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return data


def _hardware(config: Config) -> dict[str, Any] | None:
    """The hardware profile that prompts, builds and bounds of the run are made for; None when none fits its device and ranks."""
    from pkb import hardware

    try:
        profile = hardware.of(config)
    except UserError:
        return None
    return {"profile": profile.name, "title": profile.title, "device": profile.device, "gpus": profile.gpus}


def model_names(description: Mapping[str, Any]) -> list[str]:
    """The models of a run, from its description."""
    return [model["name"] for model in description.get("models") or []] or list(description["config"]["models"])


def imported(description: Mapping[str, Any]) -> list[str]:
    """Those of the models that are folders of kernels: nobody can be asked for more of them."""
    return [model["name"] for model in description.get("models") or [] if "imported" in model]


def versions() -> dict[str, Any]:
    """Versions and revision of what runs here; None for what is not installed or not known."""
    found: dict[str, Any] = {"pkb": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in _RECORDED_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return {**found, "git": _git_revision(), "command": " ".join(sys.argv[1:])}


def _ours_and_empty(entry: Path) -> bool:
    """What a session leaves that is killed before run.yaml exists."""
    return entry.name == ".lock" or (entry.name in TABLES and not any(entry.iterdir())) or entry.name.endswith(TEMPORARY_SUFFIX)


def _git_revision() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for key in sorted({*there, *here}):
        a, b = there.get(key), here.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and f"{prefix}{key}" not in ("run_dir",) and not f"{prefix}{key}".startswith(("cluster.", "budget.")):
            found.append((f"{prefix}{key}", a, b))
    return found
