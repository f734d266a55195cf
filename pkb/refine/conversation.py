"""The messages of an attempt, within the model's context window: the task, the best answer so far, and as many of the last turns as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Characters of a token, low on purpose: code has short tokens, and a window that overflows costs the attempt.
CHARACTERS_PER_TOKEN = 3.0
NO_ANSWER = "(no answer)"


@dataclass(frozen=True)
class Turn:
    """An answer as it was given, the candidate in it (None without one), and what the model is told about it."""

    answer: str
    source: str | None
    feedback: str


def messages(task: Sequence[dict[str, Any]], turns: Sequence[Turn], best: int | None, limit: int) -> list[dict[str, Any]]:
    """The next question: task, then answers and feedback in turn, in at most ``limit`` tokens as estimated here.

    Turns are left out from the middle, and the text says which. The task, the best turn and the last feedback always stay; where
    even they are too long, answers are cut down to their code, and in the end the last answer, unless it is the best, is left out.
    """
    room = limit - sum(tokens(m["content"]) for m in task)
    last = len(turns) - 1
    shown = {i: turns[i].answer or NO_ANSWER for i in {last, best} - {None} if i is not None and i >= 0}
    if _size(turns, shown) > room:
        shown = {i: _code_only(turns[i]) for i in shown}
    if _size(turns, shown) > room and last != best and last in shown:
        shown[last] = "(this answer was too long to be repeated here)"
    for i in range(last - 1, -1, -1):
        if i in shown:
            continue
        more = {**shown, i: turns[i].answer or NO_ANSWER}
        if _size(turns, more) > room:
            break
        shown = more
    result = [dict(message) for message in task]
    previous = -1
    for i in sorted(shown):
        gap = f"(Turns {previous + 1} to {i - 1} are left out here.)\n\n" if i > previous + 1 else ""
        result.append({"role": "assistant", "content": shown[i]})
        result.append({"role": "user", "content": gap + turns[i].feedback})
        previous = i
    return result


def tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 4


def _size(turns: Sequence[Turn], shown: dict[int, str]) -> int:
    return sum(tokens(answer) + tokens(turns[i].feedback) + 16 for i, answer in shown.items())


def _code_only(turn: Turn) -> str:
    return NO_ANSWER if turn.source is None else f"```python\n{turn.source.rstrip()}\n```"
