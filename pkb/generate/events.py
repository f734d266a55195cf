"""A provider's stream of server-sent events as it arrives: the facts in it, and the text so far.

Read here and not taken from litellm, which gives up a stream at an end that says it failed, before the count of what is billed,
and which does not take every form of text: what has come is then still known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pkb.generate.facts import Facts, mapping, read_event

#: The names under which providers send reasoning.
REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
_LINE = re.compile(rb"\r\n|\n|\r(?!\Z)")


@dataclass
class Events:
    """Feed it bytes; ``end`` when there are no more. facts: as far as the events tell. damaged: an event before the end of the
    answer cannot be read, so a piece of it may be missing.
    """

    facts: Facts = field(default_factory=Facts)
    damaged: bool = False
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _rest: bytearray = field(default_factory=bytearray)  # of a line
    _data: list[bytes] = field(default_factory=list)  # of an event

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def feed(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere. Lines end in CR, LF or both; a CR at the end waits for what follows."""
        ended = self._rest.endswith(b"\r")
        self._rest += data
        if ended or b"\n" in data or b"\r" in data:
            *lines, rest = _LINE.split(bytes(self._rest))
            self._rest = bytearray(rest)
            for line in lines:
                self._line(line)

    def end(self) -> None:
        """Take what is left: not every stream ends in an empty line."""
        self.feed(b"\n\n")

    def _line(self, line: bytes) -> None:
        if not line:
            self._event()
        elif line.startswith((b"data:", b"\xef\xbb\xbfdata:")):
            self._data.append(line.partition(b":")[2].strip())

    def _event(self) -> None:
        lines, self._data = self._data, []
        if not lines:
            return
        whole = _parsed(b"\n".join(lines))
        # Several lines are one document by the standard, and some write an event a line without the empty one between them.
        for line, event in (
            [(lines[0], whole)] if whole is not None or len(lines) == 1 else zip(lines, map(_parsed, lines), strict=True)
        ):
            if event is None:
                self.damaged = self.damaged or (line.startswith(b"{") and not self.facts.finish_reason)
                continue
            self.facts = read_event(self.facts, event)
            if isinstance(event, dict):
                text, reasoning = texts_of(event)
                self._text.append(text)
                self._reasoning.append(reasoning)


def texts_of(data: dict[str, Any]) -> tuple[str, str]:
    """Text and reasoning in one event, or in a document of OpenAI's form."""
    if isinstance(choices := data.get("choices"), list):
        first = mapping(choices[0]) if choices else {}
        message = mapping(first.get("message")) or mapping(first.get("delta"))
        content = message.get("content")
        reasoning = "".join(_reasoning_of(content))
        return text_of(content), reasoning or next((t for name in REASONING if (t := text_of(message.get(name)))), "")
    if data.get("type") == "content_block_delta":  # Anthropic
        delta = mapping(data.get("delta"))
        return text_of(delta.get("text")), text_of(delta.get("thinking"))
    if isinstance(candidates := data.get("candidates"), list):  # Gemini
        content = mapping(mapping(candidates[0]).get("content")) if candidates else {}
        parts = [p for p in content.get("parts") or [] if isinstance(p, dict)]
        return text_of([p for p in parts if not p.get("thought")]), text_of([p for p in parts if p.get("thought")])
    return "", ""


def text_of(content: Any) -> str:
    """Content as text: providers may send a list of parts, with reasoning among them."""
    if isinstance(content, list):
        return "".join(text_of(part) for part in content if not _is_reasoning(part))
    if isinstance(content, dict):
        return text_of(content.get("text"))
    return "" if content is None or isinstance(content, bool) else str(content)


def _reasoning_of(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if _is_reasoning(part):
            yield next((t for name in ("text", *REASONING) if (t := text_of(part.get(name)))), "")


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in REASONING


def _parsed(data: bytes) -> Any:
    """The JSON in an event; None when it is none. NaN has no place in a row's JSON."""
    if data == b"[DONE]":
        return "[DONE]"
    try:
        return json.loads(data, parse_constant=lambda word: None)
    except (ValueError, RecursionError):
        return None
