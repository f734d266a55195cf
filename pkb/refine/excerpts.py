"""The lines of a candidate that a compiler's message, a traceback or a stack points to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_ERRORS = 5
_COMPILER = re.compile(
    r"^(?P<file>[\w./-]*?(?P<name>main\.cpp|cuda\.cu|[\w-]+\.(?:cpp|cu|cuh|h)))[:(](?P<line>\d+)(?::\d+)?[):]+ "
    r"(?:fatal )?error:? ?(?P<message>.*)$",
    re.MULTILINE,
)
_SNIPPET = re.compile(r"^\s*\d+ \| (.*)$")
_PYTHON = re.compile(r'File "[^"]*candidate\.py", line (\d+)(?:, in (\S+))?')


@dataclass(frozen=True)
class Place:
    """A line of the candidate's file (from 1; None where it cannot be told), its text, and what is said of it."""

    line: int | None
    text: str
    message: str


def compiler_errors(log: str, source: str) -> list[Place]:
    """The compiler's first errors, each with the candidate's line that it points to.

    C++ and CUDA stand in strings of the candidate, so the compiler's own line numbers say little; the line that it quotes is looked
    up in the candidate instead.
    """
    found: list[Place] = []
    lines = log.splitlines()
    at = {m.start(): m for m in _COMPILER.finditer(log)}
    position = 0
    for number, text in enumerate(lines):
        match = at.get(position)
        position += len(text) + 1
        if match is None or len(found) == MOST_ERRORS:
            continue
        quoted = next((q for q in (_quoted(line) for line in lines[number + 1 : number + 3]) if q), "")
        place = Place(_line_of(quoted, source, match["name"], int(match["line"])), quoted, match["message"].strip())
        if place not in found:
            found.append(place)
    return found


def traceback_lines(text: str, source: str) -> list[Place]:
    """The candidate's own frames of a traceback, outermost first."""
    lines = source.split("\n")
    return [
        Place(int(n), lines[int(n) - 1].strip() if int(n) <= len(lines) else "", f"in {name or 'the file'}")
        for n, name in _PYTHON.findall(text)
    ]


def syntax_line(detail: str) -> list[int]:
    """The line that Python's parser complained about; empty when it is another complaint."""
    match = re.match(r"not Python: .*\(line (\d+)\)$", detail)
    return [int(match[1])] if match else []


def calls_of(detail: str, source: str) -> list[int]:
    """Lines of the candidate that call a function which ``detail`` names, such as a collective; not its comments."""
    names = set(re.findall(r"\b[a-z]\w*_\w+\b", detail))
    called = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\s*\(") if names else None
    lines = source.split("\n")
    return [n for n, line in enumerate(lines, 1) if called and called.search(line.split("#")[0])][:MOST_ERRORS]


def undefined_symbol(detail: str) -> str:
    """The plain name of a C++ function that the loader did not find ("undefined symbol: _Z6helperi"); empty without one."""
    match = re.search(r"undefined symbol: (?:_Z(?:N\w*?)?(\d+)(\w+)|(\w+))", detail)
    if match is None:
        return ""
    return match[2][: int(match[1])] if match[1] else match[3]


def excerpt(source: str, marked: Iterable[int], around: int = 2) -> str:
    """Numbered lines of the candidate around the marked ones, which have an arrow; gaps are shown."""
    lines = source.split("\n")
    marks = {n for n in marked if 0 < n <= len(lines)}
    shown = sorted({i for n in marks for i in range(max(1, n - around), min(len(lines), n + around) + 1)})
    width = len(str(shown[-1])) if shown else 1
    text: list[str] = []
    for previous, n in zip([None, *shown], shown, strict=False):
        if previous is not None and n > previous + 1:
            text.append("   ...")
        text.append(f"{'->' if n in marks else '  '} {n:>{width}} | {lines[n - 1][:200]}".rstrip())
    return "\n".join(text)


def _quoted(line: str) -> str:
    """The source line that gcc (``5 | text``) or nvcc (indented text) quotes under an error."""
    match = _SNIPPET.match(line)
    if match:
        return match[1].strip()
    return line.strip() if line.startswith("  ") and "^" not in line else ""


def _line_of(quoted: str, source: str, file: str, number: int) -> int | None:
    """The candidate's line that says ``quoted``; where several do, the one nearest to line ``number`` of the compiler's ``file``."""
    if len(quoted) < 3:
        return None
    places = [i for i, line in enumerate(source.split("\n"), 1) if line.strip() == quoted]
    if len(places) < 2:
        return places[0] if places else None
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return places[0]
    texts = [n.lineno for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and quoted in n.value]
    added = (
        0 if "no_implicit_headers=True" in source else 3 if file.endswith(".cu") else 1
    )  # lines that load_inline puts before it
    return min(places, key=lambda i: min((abs(i - (start + number - 1 - added)) for start in texts), default=0))
