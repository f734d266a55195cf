"""From a model's answer to a candidate's source, with a status: what was taken, or why nothing was.

The rule: hidden reasoning is dropped; of the fenced blocks that define ``solution`` the last complete one is the answer;
without a fence the text itself, if it is Python. An answer that was cut off is never run as if it were whole.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class ExtractionStatus(StrEnum):
    """Exactly one per answer; only OK comes with a source."""

    OK = "ok"
    NO_CODE = "no_code"
    TRUNCATED = "truncated"


@dataclass(frozen=True)
class Extraction:
    """status, the source when OK, and one line of reason otherwise."""

    status: ExtractionStatus
    source: str | None
    reason: str = ""


@dataclass(frozen=True)
class _Block:
    """One fenced block. closed: how its end was found; label: a file name stated for it, if any."""

    language: str
    text: str
    closed: bool
    label: str = ""


OPENING = re.compile(r"^(?P<prefix>[ \t]*(?:[-*+>] |\d+[.)] )?)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
FILE_NAME = re.compile(r"(?<![\w./-])([\w./-]*\w\.(?:py|cu|cuh|cpp|cc|h|hpp|c))(?![\w/])")
PYTHON = {
    "",
    "python",
    "py",
    "python3",
    "py3",
    "python3.11",
    "python3.12",
    "ipython",
    "text",
    "plaintext",
    "txt",
    "triton",
    "cuda-python",
}
THOUGHT = re.compile(r"\s*<(think|thinking|reasoning|thought)>", re.IGNORECASE)
THOUGHT_END = re.compile(r"^[^\n\"'`]*</(?:think|thinking|reasoning|thought)>", re.IGNORECASE | re.MULTILINE)
DEFINES = re.compile(r"^(?:async[ \t]+)?def[ \t]+solution[ \t]*\(|^solution[ \t]*(?::[^=\n]+)?=[^=]", re.MULTILINE)
DIFF = re.compile(
    r"^(?:--- \S.*\n\+\+\+ \S|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@|diff --git |\*\*\* (?:Begin Patch|Update File)|<{7} SEARCH"
    r"|-(?:async )?def solution\()",
    re.MULTILINE,
)
#: Of long texts fewer ends are tried, of a block or of text without a fence: an answer must not cost more than a second or two.
MOST_TRIED, MOST_PARSED = 20, 2_000_000
STATEMENT = re.compile(r"^(?:import\s+\w|from\s+[\w.]+\s+import\b|def\s+\w+\s*\(|class\s+\w+|@\w|#|\"\"\"|''')")


@functools.lru_cache(maxsize=64)
def extract(answer: str, truncated: bool) -> Extraction:
    """The candidate in ``answer``; ``truncated`` says that the provider cut it off (finish reason ``length``)."""
    text = answer.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text, thinking = _without_reasoning(text)
    if thinking:
        status = ExtractionStatus.TRUNCATED if truncated else ExtractionStatus.NO_CODE
        return Extraction(status, None, "the answer ends inside its reasoning")
    if not text.strip():
        return Extraction(ExtractionStatus.TRUNCATED if truncated else ExtractionStatus.NO_CODE, None, "the answer is empty")
    blocks = list(_blocks(text))
    if not blocks:
        return _bare(text, truncated)
    cut = next((b for b in blocks if not b.closed), None)
    if cut is not None and truncated:
        return Extraction(ExtractionStatus.TRUNCATED, None, "the answer was cut off inside a code block")
    solving = [b for b in blocks if _defines(b) and not DIFF.search(b.text)]
    complete = [b for b in solving if b.closed or _parses(b.text)]
    if complete:
        return _one_file(complete[-1], blocks)
    if solving:
        return Extraction(ExtractionStatus.TRUNCATED, None, "the last code block has no end and is not complete Python")
    return Extraction(ExtractionStatus.NO_CODE, None, _why_none(blocks))


def _without_reasoning(text: str) -> tuple[str, bool]:
    """The text after any leading reasoning, and whether the reasoning never ended."""
    opening = THOUGHT.match(text)
    if opening:
        ends = re.compile(rf"</{opening[1]}>", re.IGNORECASE).search(text, opening.end())
        return ("", True) if ends is None else _without_reasoning(text[ends.end() :])
    lone = list(THOUGHT_END.finditer(text))  # chat templates that open the tag in the prompt leave only its end
    return (text[lone[-1].end() :], False) if lone else (text, False)


def _blocks(text: str, quoted: bool = False) -> Iterator[_Block]:
    lines = text.split("\n")
    most = _most_tried(len(text))
    at = 0
    while at < len(lines):
        opening = OPENING.match(lines[at])
        if not opening:
            at += 1
            continue
        fence = opening["fence"]
        body = _Body(lines, at + 1, len(opening["prefix"]))
        end, closed = _end(body, fence, most)
        source = body.until(end)
        if closed and not _closes(lines[end], fence):  # code and fence on one line
            source += "\n" + lines[end].rstrip().rstrip(fence[0])
        info = opening["info"].strip()
        language = re.split(r"[\s{:,]", info, maxsplit=1)[0].lower()
        if closed and language in ("markdown", "md") and not quoted:  # the whole answer as a quotation
            yield from _blocks(source, quoted=True)
        else:
            yield _Block(language, source.strip("\n") + "\n", closed, _label(info, lines, at))
        at = end + 1


@dataclass(frozen=True)
class _Body:
    """The lines of a block from ``start`` on, without the indentation that its opening line has."""

    lines: list[str]
    start: int
    indent: int

    def until(self, end: int) -> str:
        """The text up to, not including, line ``end``."""
        return "\n".join(re.sub(rf"^[ \t]{{0,{self.indent}}}", "", line) for line in self.lines[self.start : end])


def _end(body: _Body, fence: str, most: int) -> tuple[int, bool]:
    """Index of the line that closes a block, and whether there is one; at most ``most`` places are tried.

    The first closing line is right unless it stands inside the Python code itself (a fence in a docstring): then the text up
    to it does not parse while the text up to a later one does.
    """
    after = range(body.start, len(body.lines))
    closing = list(itertools.islice((i for i in after if _closes(body.lines[i], fence)), most))
    for i in closing:
        source = body.until(i)
        if _parses(source) or not (DEFINES.search(source) or _inside_string(source)):
            return i, True  # complete, or not Python at all and nothing to be gained by looking further
    if closing:
        return closing[0], True
    for i in itertools.islice((i for i in after if body.lines[i].rstrip().endswith(fence)), most):
        if _parses(body.until(i) + "\n" + body.lines[i].rstrip().rstrip(fence[0])):
            return i, True
    return len(body.lines), False


def _most_tried(characters: int) -> int:
    return max(1, min(MOST_TRIED, MOST_PARSED // max(1, characters)))


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip().lstrip("> ")
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}


def _inside_string(source: str) -> bool:
    """Whether the text ends inside a triple-quoted string."""
    return source.count('"""') % 2 == 1 or source.count("'''") % 2 == 1


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _defines(block: _Block) -> bool:
    return (block.language in PYTHON or block.language.endswith(".py")) and DEFINES.search(block.text) is not None


def _label(info: str, lines: list[str], at: int) -> str:
    """The file name that an answer states for a block: in the info string, on the line before, or in a first comment."""
    before = next((line for line in reversed(lines[max(0, at - 2) : at]) if line.strip()), "")
    first = lines[at + 1] if at + 1 < len(lines) and re.match(r"\s*(#|//|/\*)", lines[at + 1]) else ""
    for place in (info, first, before):
        stated = FILE_NAME.search(place)
        if stated and len(place.strip()) < len(stated[1]) + 24:  # a label, not a sentence that mentions a file
            return stated[1].rsplit("/", 1)[-1]
    return ""


def _one_file(block: _Block, blocks: list[_Block]) -> Extraction:
    """The block, unless it needs another file of the same answer."""
    for other in blocks:
        if other.label and other.label != block.label and _needs(block.text, other.label):
            reason = f"the answer is several files: solution needs {other.label}, but one file is run"
            return Extraction(ExtractionStatus.NO_CODE, None, reason)
    return Extraction(ExtractionStatus.OK, block.text)


def _needs(source: str, file: str) -> bool:
    stem = re.escape(file.rsplit(".", 1)[0])
    if file.endswith(".py"):
        return re.search(rf"^\s*(?:from\s+\.?{stem}\s+import|import\s+{stem})\b", source, re.MULTILINE) is not None
    return re.search(rf"[\"'/]{re.escape(file)}[\"']", source) is not None


def _why_none(blocks: list[_Block]) -> str:
    if any(b.language in ("diff", "patch") or DIFF.search(b.text) for b in blocks):
        return "the answer is a diff; the whole file was asked for"
    if len({b.label for b in blocks if b.label}) > 1:
        return "the answer is several files, and no block defines solution"
    foreign = [b.language for b in blocks if b.language not in PYTHON and DEFINES.search(b.text)]
    if foreign:
        return f"solution stands in a block marked {foreign[-1]}, not Python"
    return "no code block defines solution"


def _bare(text: str, truncated: bool) -> Extraction:
    """An answer without any fence."""
    if truncated:
        return Extraction(ExtractionStatus.TRUNCATED, None, "the answer was cut off before any complete code block")
    if DIFF.search(text):
        return Extraction(ExtractionStatus.NO_CODE, None, "the answer is a diff; the whole file was asked for")
    if not DEFINES.search(text):
        return Extraction(ExtractionStatus.NO_CODE, None, "the answer has no code block and does not define solution")
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if STATEMENT.match(line)][: _most_tried(len(text))]
    for start in dict.fromkeys([0, *starts]):  # prose may stand before and after the code
        source = _python_prefix(lines[start:])
        if DEFINES.search(source):
            return Extraction(ExtractionStatus.OK, source.strip("\n") + "\n")
    return Extraction(ExtractionStatus.NO_CODE, None, "the answer has no code block, and its text is not Python")


def _python_prefix(lines: list[str]) -> str:
    """The longest beginning of a text that is Python, as far as the places of syntax errors tell; empty when there is none."""
    for _ in range(4):
        source = "\n".join(lines)
        try:
            ast.parse(source)
            return source
        except SyntaxError as error:
            lines = lines[: max(0, min(error.lineno or 1, len(lines)) - 1)]
        except (ValueError, RecursionError, MemoryError):
            return ""
    return ""
