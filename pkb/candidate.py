"""A candidate's text: its interface, and what can be told from it without running it."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pkb.verdict import Verdict


def parameters_of(source: str, function: str = "solution") -> list[inspect.Parameter]:
    """The parameters of a top-level function, in order, read from its text (nothing is executed).

    Defaults are evaluated only when they are literals; any other default is kept as its source text.
    Raises SyntaxError if the text is not Python, LookupError if it defines no such function.
    """
    definition = next(
        (
            n
            for n in reversed(ast.parse(source).body)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == function
        ),
        None,
    )
    if definition is None:
        raise LookupError(f"no top-level function '{function}'")
    args = definition.args
    positional = [*args.posonlyargs, *args.args]
    missing = len(positional) - len(args.defaults)
    kinds: list[Any] = [inspect.Parameter.POSITIONAL_ONLY for _ in args.posonlyargs] + [
        inspect.Parameter.POSITIONAL_OR_KEYWORD for _ in args.args
    ]
    found = [
        inspect.Parameter(
            arg.arg, kind, default=_value(args.defaults[i - missing]) if i >= missing else inspect.Parameter.empty
        )
        for i, (arg, kind) in enumerate(zip(positional, kinds, strict=True))
    ]
    if args.vararg:
        found.append(inspect.Parameter(args.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        value = inspect.Parameter.empty if default is None else _value(default)
        found.append(inspect.Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, default=value))
    if args.kwarg:
        found.append(inspect.Parameter(args.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return found


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def check(source: str, problem_name: str) -> tuple[Verdict, str] | None:
    """What can be told from the text alone: (verdict, detail), or None when the candidate must be run.

    A module that binds ``solution`` other than by a definition passes here and is looked at again when it is loaded.
    """
    if not source.strip():
        return Verdict.NO_CODE, "the answer holds no code"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        return Verdict.LOAD_ERROR, f"not Python: {getattr(error, 'msg', None) or error}{where}"
    try:
        return _interface_fault(parameters_of(source), problem_name)
    except LookupError:
        if _binds(tree, "solution"):
            return None
        return Verdict.BAD_INTERFACE, "the module defines no function 'solution'"


def interface_fault(names: list[str], problem_name: str) -> tuple[Verdict, str] | None:
    """The same judgement for a loaded module, from the parameter names of its ``solution`` ('*x' for a variadic one)."""
    found = [
        inspect.Parameter(
            n.lstrip("*"), inspect.Parameter.VAR_POSITIONAL if n.startswith("*") else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        for n in names
    ]
    return _interface_fault(found, problem_name)


def _interface_fault(found: list[inspect.Parameter], problem_name: str) -> tuple[Verdict, str] | None:
    from pkb import problem

    wanted = [p.name for p in problem.load(problem_name).parameters()]
    positional = [p for p in found if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found) and names == wanted[: len(names)]:
        return None
    extra = [p for p in positional[len(wanted) :] if p.default is inspect.Parameter.empty]
    if names[: len(wanted)] != wanted or extra:
        return Verdict.BAD_INTERFACE, f"solution({', '.join(names)}) where solution({', '.join(wanted)}) is asked for"
    return None


def _binds(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == name:
            return True
    return False
