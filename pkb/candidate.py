"""A candidate's text: its interface, and what can be told from it without running it."""

from __future__ import annotations

import ast
import inspect
from typing import Any


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
