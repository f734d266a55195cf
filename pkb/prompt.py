"""The prompt: reference + hardware + rules + backend + examples -> text. Deterministic: same problem and config, same text.

``conf/prompts/<template>.yaml`` lists the sections in order and how many worked examples to show; ``sections/*.md`` are
their texts with ``$name`` places, ``policies/*.md`` one rule each, ``backends/*.md`` the instructions of a backend, and
``examples/<backend>/NNN_stem.py`` candidates that are themselves judged by the tests; ``examples/<backend>.yaml`` says that a backend
shows those of another, and how they are introduced. A problem's own example is never shown.
"""

from __future__ import annotations

import ast
import hashlib
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pkb import hardware, problem
from pkb.config import Config, conf_root
from pkb.errors import UserError
from pkb.hardware import Hardware
from pkb.problem import Problem

#: Which example comes first; those not listed follow in order of their number.
EXAMPLE_ORDER = ("003_broadcast", "008_alltoall", "001_allreduce")


@dataclass(frozen=True)
class Template:
    """One file of conf/prompts: section names in order, and the number of examples."""

    name: str
    sections: tuple[str, ...]
    examples: int


def render(problem_name: str, config: Config) -> str:
    """The exact text that a model is asked with, for one problem (number, stem or name) under one configuration.

    Raises UserError for an unknown problem, template or hardware profile, and for a world size or size that the problem does
    not admit.
    """
    target = problem.load(problem_name)
    template = load_template(config.prompt.template)
    values = _values(target, config, template)
    parts = [_section(name, values, config.device).strip() for name in template.sections]
    return "\n\n".join(part for part in parts if part) + "\n"


def messages(problem_name: str, config: Config) -> list[dict[str, Any]]:
    """The conversation that opens an attempt: one user message."""
    return [{"role": "user", "content": render(problem_name, config)}]


def prompt_hash(prompt: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a prompt's text; part of a row's resume key."""
    return hashlib.sha256(prompt.encode("utf-8")).hexdigest()[:16]


def backend_of(config: Config) -> str:
    """The backend asked for: ``auto`` is shm on CPU ranks and cuda on GPUs.

    Raises UserError when backend and device cannot go together.
    """
    backend = config.prompt.backend
    if backend == "auto":
        return "shm" if config.device == "cpu" else "cuda"
    if (backend == "shm") != (config.device == "cpu"):
        right = "shm" if config.device == "cpu" else "cuda, triton or parallelkittens"
        raise UserError(f"prompt.backend={backend} does not run on device={config.device}; use {right}")
    return backend


def examples(backend: str, but: str = "") -> list[Path]:
    """The worked examples of a backend in order of preference, without that of problem ``but`` (NNN_stem)."""
    folder = conf_root() / "prompts" / "examples" / (_borrowed(backend).get("examples_of") or backend)
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    ordered = [s for s in EXAMPLE_ORDER if s in found] + [s for s in found if s not in EXAMPLE_ORDER]
    return [found[stem] for stem in ordered if stem != but]


def load_template(name: str) -> Template:
    """The template of that name; raises UserError for one that does not exist."""
    import yaml

    path = conf_root() / "prompts" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise UserError(f"no prompt template '{name}'; known: {known} (set prompt.template)")
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Template(name, tuple(data["sections"]), int(data["examples"]))


def _section(name: str, values: dict[str, str], device: str) -> str:
    if name in ("backend", "examples"):
        return values[name]
    file = "hardware_cpu" if (name, device) == ("hardware", "cpu") else name
    return string.Template(_read(f"sections/{file}.md")).substitute(values)


def _values(target: Problem, config: Config, template: Template) -> dict[str, str]:
    shape = target.shape(config.ranks, config.size.preset, config.dtype, config.size.dims)
    backend = backend_of(config)
    profile = hardware.of(config)
    dims = ", ".join(f"{k}={v}" for k, v in vars(shape.size).items())
    shown = examples(backend, but=target.name)[: template.examples]
    return {
        "title": target.title,
        "reference": target.reference_source.strip(),
        "signature": _signature(target.reference_source),
        "ranks": str(config.ranks),
        "dtype": config.dtype,
        "dims": dims,
        "inputs_rule": _inputs_rule(target),
        "policy": _read(f"policies/{config.integrity.collectives}.md").strip(),
        "backend": _read(f"backends/{backend}.md"),
        "examples": _examples(backend, shown),
        **_hardware_values(profile),
    }


def _hardware_values(profile: Hardware) -> dict[str, str]:
    cuda = profile.device == "cuda"
    details = f" {profile.sms} multiprocessors with {profile.shared_memory_bytes // 1024} KiB of shared memory each."
    details += f" Bulk asynchronous copies (TMA): {'yes' if profile.tma else 'no'}."
    return {
        "hardware_title": profile.title,
        "where": "on its own GPU" if cuda else "in its own process",
        "topology": profile.topology,
        "memory_gb": f"{profile.memory_bytes / 1e9:g}",
        "memory_bandwidth": f"{profile.memory_bandwidth / 1e9:g}",
        "l2_mb": f"{profile.l2_bytes / 2**20:g}",
        "device_details": details,
        "peaks": ", ".join(f"{name} {flops / 1e12:g} TFLOP/s" for name, flops in profile.peak_flops.items()),
        "build": profile.build,
    }


def _inputs_rule(target: Problem) -> str:
    if not target.mutates:
        return "Inputs must be left unchanged."
    names = ", ".join(f"`{name}`" for name in target.mutates)
    return f"{names} must be changed in place, as the reference does; all other inputs must be left unchanged."


def _signature(source: str) -> str:
    """``def solution(...) -> ...`` as the reference writes it, on one line."""
    found = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "solution"]
    returns = f" -> {ast.unparse(found[-1].returns)}" if found[-1].returns else ""
    return f"def solution({ast.unparse(found[-1].args)}){returns}"


def _borrowed(backend: str) -> dict[str, str]:
    """``examples_of`` and ``introduction`` of a backend that shows another's examples; empty for one that has its own."""
    import yaml

    path = conf_root() / "prompts" / "examples" / f"{backend}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _examples(backend: str, shown: list[Path]) -> str:
    introduction = _borrowed(backend).get("introduction", "").strip() if shown else ""
    return "\n\n".join([*([introduction] if introduction else []), *(_example(path) for path in shown)])


def _example(path: Path) -> str:
    """One worked example with the reference that it replaces."""
    shown = problem.load(path.stem)
    return (
        f"# Worked example: {shown.title}\n\nThe reference:\n\n```python\n{shown.reference_source.strip()}\n```\n\n"
        f"A correct replacement:\n\n```python\n{path.read_text(encoding='utf-8').strip()}\n```"
    )


def _read(name: str) -> str:
    return (conf_root() / "prompts" / name).read_text(encoding="utf-8")
