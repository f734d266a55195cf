"""Building a candidate's extensions before any rank starts: found in its text, compiled without a GPU, cached by content."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pkb.config import Config
from pkb.errors import HarnessError
from pkb.evaluate import extension as extensions
from pkb.evaluate import folders, opcodes, sandbox
from pkb.evaluate.extension import Extension

LOG_LIMIT = 16_000


@dataclass(frozen=True)
class Build:
    """What became of a candidate's extensions. files: identity of an extension -> shared library, as bytes, so that it can travel.

    opcodes: distinct instructions of the device code, one per line (``pkb.evaluate.opcodes``). ok is False when a compiler
    refused; log then holds its words, first error first.
    """

    key: str
    ok: bool
    log: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    cached: bool = True
    opcodes: str = ""


def build(source: str, device: str, config: Config) -> Build:
    """Compile every extension that the text describes with constants; those computed at run time are built on the ranks.

    Raises HarnessError if the compiler cannot be run at all.
    """
    start = time.monotonic()
    if device == "cuda" and "TORCH_CUDA_ARCH_LIST" not in os.environ:
        os.environ["TORCH_CUDA_ARCH_LIST"] = arch_list(config)
    files: dict[str, bytes] = {}
    told: list[str] = []
    cached = True
    found = extensions_in(source)
    key = "-".join(sorted(e.key()[:12] for e in found))[:200]
    for item in found:
        if item.with_cuda and device == "cpu":
            log = "this run has CPU ranks and no CUDA; use torch.utils.cpp_extension.load_inline with cpp_sources"
            return Build(key, False, log, {}, time.monotonic() - start, False)
        hit = cache_root(config) / item.key() / f"{item.name}.so"
        if not hit.is_file():
            cached = False
            if log := _compile(item, hit.parent, config):
                return Build(key, False, log, {}, time.monotonic() - start, False)
        files[item.identity()] = hit.read_bytes()
        with contextlib.suppress(FileNotFoundError):  # only device code has them
            told.append((hit.parent / opcodes.FILE).read_text(encoding="utf-8"))
    return Build(key, True, "", files, time.monotonic() - start, cached, "\n".join(told))


def cache_root(config: Config) -> Path:
    """Where libraries are kept, one folder per key, each complete from the moment it has its name."""
    base = config.evaluation.cache_dir or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / ("builds" if config.evaluation.cache_dir else "pkb/builds")


def arch_list(config: Config) -> str:
    """TORCH_CUDA_ARCH_LIST for the run's hardware; Hopper's own instructions need the ``a`` target."""
    from pkb import hardware

    return ";".join(hardware.of(config).arch)


def extensions_in(source: str) -> list[Extension]:
    """Every ``compile_cuda_extension`` and ``load_inline`` call whose arguments are constants, through names of the module or function."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found: list[Extension] = []
    for node, names in _calls(tree, _constants(tree, {})):
        called = (
            node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        )
        try:
            args = [_evaluate(a, names) for a in node.args]
            options = {k.arg: _evaluate(k.value, names) for k in node.keywords if k.arg}
            if called == "compile_cuda_extension":
                found.append(extensions.cuda_extension(*args, **options))
            elif called == "load_inline":
                kept = {
                    k: v
                    for k, v in options.items()
                    if k not in ("verbose", "build_directory", "is_python_module", "keep_intermediates")
                }
                found.append(extensions.inline(*args, **kept))
        except (LookupError, TypeError, ValueError):
            continue  # not constant: built on the ranks
    return list(dict.fromkeys(found))


_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def _calls(node: ast.AST, names: Mapping[str, Any]) -> Iterator[tuple[ast.Call, Mapping[str, Any]]]:
    """Every call below ``node``, with the constants that are visible where it stands."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, names
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden = {a.arg for a in ast.walk(child.args) if isinstance(a, ast.arg)}
            inner = _constants(child, {k: v for k, v in names.items() if k not in hidden})
        yield from _calls(child, inner)


def _constants(scope: _Scope, outer: Mapping[str, Any]) -> dict[str, Any]:
    """Names that hold constants, or expressions of such, once the scope's own statements have run.

    A name that anything but a plain assignment at the scope's top level may bind (a loop, a branch, ``+=``) is none of them.
    """
    plain: dict[int, tuple[ast.Name, ast.expr]] = {}
    for node in scope.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            plain |= {id(t): (t, node.value) for t in targets if isinstance(t, ast.Name)}
    unsure = {
        n.id for n in _own_nodes(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and id(n) not in plain
    }
    unsure |= {name for n in ast.walk(scope) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    names = {k: v for k, v in outer.items() if k not in unsure}
    for target, value in plain.values():
        try:
            if target.id not in unsure:
                names[target.id] = _evaluate(value, names)
        except (LookupError, TypeError, ValueError):
            names.pop(target.id, None)
    return names


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a scope but what belongs to the functions inside it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(child)


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a constant expression; raises LookupError for anything that would have to be run."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(i, names) for i in items]
        case ast.Dict(keys=keys, values=values) if all(k is not None for k in keys):
            return {_evaluate(k, names): _evaluate(v, names) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _evaluate(left, names) + _evaluate(right, names)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            right_value = _evaluate(right, names)
            return _evaluate(left, names) % (tuple(right_value) if isinstance(right_value, list) else right_value)
        case ast.JoinedStr(values=parts):
            return "".join(str(_evaluate(p.value if isinstance(p, ast.FormattedValue) else p, names)) for p in parts)
        case ast.Call(func=ast.Attribute(value=base, attr=method), args=args, keywords=keywords) if method in _STRING_METHODS:
            text = _evaluate(base, names)
            if isinstance(text, str):
                values = [_evaluate(a, names) for a in args]
                return getattr(text, method)(*values, **{k.arg: _evaluate(k.value, names) for k in keywords if k.arg})
    raise LookupError(ast.dump(node)[:80])


_STRING_METHODS = {"format", "replace", "strip", "lstrip", "rstrip", "join"}


def _compile(item: Extension, final: Path, config: Config) -> str:
    """Compile in a session of its own and rename into the cache; returns the trimmed log of a failure, '' if it worked."""
    final.parent.mkdir(parents=True, exist_ok=True)
    work, lock = folders.claim(".build-", final.parent)
    try:
        folder = work / "out"
        folder.mkdir()
        description = work / "extension.json"
        description.write_text(json.dumps(asdict(item)), encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if k in _KEPT_VARIABLES}
        root = os.fspath(Path(__file__).resolve().parents[2])
        environment.update(PYTHONPATH=root, HOME=os.fspath(work), TMPDIR=os.fspath(work), PYTHONDONTWRITEBYTECODE="1")
        environment["MAX_JOBS"] = str(config.evaluation.build_jobs or os.cpu_count() or 1)
        command = [sys.executable, "-m", "pkb.evaluate.extension", os.fspath(description), os.fspath(folder)]
        with open(work / "log", "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=work, start_new_session=True
            )
            try:
                code = process.wait(config.evaluation.limits.build_seconds)
            except subprocess.TimeoutExpired:
                return f"the build did not finish within {config.evaluation.limits.build_seconds:g} s"
            finally:
                sandbox.end_session(process.pid)
                process.wait()
        text = (work / "log").read_text(encoding="utf-8", errors="replace")
        if code == 3:
            return trim(text)
        if code != 0:
            raise HarnessError(f"the builder failed with exit code {code}: {text.strip()[-500:]}")
        with contextlib.suppress(OSError):  # someone else was first: theirs is as good
            os.rename(folder, final)
        if not final.is_dir():
            raise HarnessError(f"the built library could not be moved to {final}; is the disk full?")
        return ""
    finally:
        folders.release(work, lock)


_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "CXX",
    "CC",
    "CUDA_HOME",
    "CUDA_PATH",
    "TORCH_CUDA_ARCH_LIST",
    "LD_LIBRARY_PATH",
    "CPATH",
    "PKB_OWNER",  # as in ``ranks``: a killed builder's compilers are found by it
)


def trim(log: str) -> str:
    """The compiler's words with the first error first, without the harness's paths, at most LOG_LIMIT characters."""
    lines = re.sub(r"\S*/\.build-\w+/out/", "", log).splitlines()
    first = next((i for i, line in enumerate(lines) if re.search(r"\berror\b[:\s]|fatal error", line)), 0)
    text = "\n".join([*lines[first:], *(["", "before that:", *lines[:first]] if first else [])])
    return text[:LOG_LIMIT]
