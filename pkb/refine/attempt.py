"""An attempt of several turns as the driver sees it: what to ask next, what needs no judging, when it is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pkb import hardware, prompt
from pkb.config import Config
from pkb.errors import UserError
from pkb.records import AttemptKey, Evaluation, Generation
from pkb.refine import conversation, feedback
from pkb.refine.limits import History, as_told, best, ending
from pkb.verdict import Verdict


def check_context(config: Config, prompts: Mapping[str, str]) -> None:
    """Raise UserError when conversations may be no longer than a task alone; prompts: by problem."""
    name, task = max(prompts.items(), key=lambda item: len(item[1]), default=("", ""))
    needed, limit = 2 * conversation.tokens(task), config.agent.context_tokens
    if config.agent.max_turns > 1 and limit < needed:
        raise UserError(
            f"agent.context_tokens={limit}: the task of {name} leaves no room for an answer; give at least {needed}"
        )


class Refinement:
    """The conversation of every attempt of a run with ``agent.max_turns`` above 1.

    longest: by model, how many tokens a question may have where that is less than ``agent.context_tokens``.
    """

    def __init__(self, config: Config, longest: Mapping[str, int] | None = None) -> None:
        self._config = config
        self._longest = dict(longest or {})
        self._machine = hardware.of(config)
        self._tasks: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, key: AttemptKey, history: History) -> list[dict[str, Any]] | None:
        """The next question's messages; None when the attempt is over."""
        if ending(history, self._config.agent) is not None:
            return None
        history = as_told(history)
        if key.problem not in self._tasks:
            self._tasks[key.problem] = prompt.messages(key.problem, self._config)
        turns = [
            conversation.Turn(generation.answer, generation.source, self._feedback(history[: i + 1]))
            for i, (generation, _) in enumerate(history)
        ]
        limit = min(self._config.agent.context_tokens, self._longest.get(key.model, self._config.agent.context_tokens))
        return conversation.messages(self._tasks[key.problem], turns, best(history), limit)

    def known(self, generation: Generation, history: History) -> Evaluation | None:
        """The verdict on an answer whose candidate an earlier turn had already; None when it is new."""
        source = generation.source
        for i, (earlier, evaluation) in enumerate(as_told(history)):
            if evaluation.verdict is Verdict.NO_CODE:  # it may have held this source, in an answer that was cut off
                continue
            if source is not None and earlier.source is not None and earlier.source.strip() == source.strip():
                extra = {k: v for k, v in evaluation.extra.items() if k != "ended"}
                return dataclasses.replace(evaluation, extra={**extra, "repeats": extra.get("repeats", i)}, seconds_by_stage={})
        return None

    def concluded(self, generation: Generation, evaluation: Evaluation, history: History) -> Evaluation:
        """The evaluation with the reason why the attempt ends with it, if it does."""
        over = ending([*history, (generation, evaluation)], self._config.agent)
        if over is None or not evaluation.verdict.counts:
            return evaluation
        return dataclasses.replace(evaluation, extra={**evaluation.extra, "ended": dataclasses.asdict(over)})

    def _feedback(self, history: History) -> str:
        """What was said after the last of these turns; the same whenever it is asked."""
        generation, evaluation = history[-1]
        top = best(history[:-1])
        standing = feedback.Standing(
            best=None if top is None else (top, _speed(history[top][1])), repeats=evaluation.extra.get("repeats")
        )
        return feedback.text(evaluation, generation.source, self._machine, standing)


def final(judged: Evaluation, before: Evaluation) -> Evaluation:
    """The judgement that counts in place of the one behind the feedback, which it keeps in short."""
    numbers = ("speedup", "speedup_low", "speedup_high", "reference_ms", "candidate_ms")
    kept = {**{k: getattr(before, k) for k in numbers}, "seconds_by_stage": dict(before.seconds_by_stage)}
    extra = {k: v for k, v in before.extra.items() if k in ("ended", "repeats", "profile")}
    told = before.extra.get("feedback") or {"verdict": before.verdict.value, **kept}
    extra = {**extra, **judged.extra, "final": True, "feedback": told}
    return dataclasses.replace(judged, extra=extra)


def _speed(evaluation: Evaluation) -> str:
    if evaluation.speedup is None:
        return "correct, not timed"
    return f"correct, {evaluation.speedup:.3g} times as fast as the reference"
