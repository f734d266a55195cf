"""When an attempt ends, and why. Everything is told from its turns alone, so that a resumed run ends where an unbroken one does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pkb.config import AgentConfig
from pkb.records import Evaluation, Generation
from pkb.verdict import Verdict

History = Sequence[tuple[Generation, Evaluation]]

#: Verdicts that say how far an answer came, each further than the one before; all others are no progress.
LADDER = (
    Verdict.COMPILE_ERROR,
    Verdict.LOAD_ERROR,
    Verdict.RUNTIME_ERROR,
    Verdict.DEADLOCK,
    Verdict.WRONG_STRUCTURE,
    Verdict.MISMATCH,
    Verdict.NONDETERMINISTIC,
    Verdict.CORRECT,
)


@dataclass(frozen=True)
class Ending:
    """rule: turns, tokens, cost, seconds, target, patience or harness. detail: one line for people."""

    rule: str
    detail: str


def ending(history: History, agent: AgentConfig) -> Ending | None:
    """Why the attempt is over after these turns; None while it goes on.

    tokens: of all questions and answers, as counted by the provider. cost: of all answers; one of unknown cost ends an attempt that
    has a limit, because the limit cannot hold. seconds: spent by the model and by the evaluation, without waiting for either.
    target: the lower end of the best correct turn's speedup. patience: so many turns in a row without a better one. A final judgement
    opens no attempt again: what turns were when the model was told of them counts here.
    """
    if not history:
        return None
    if not history[-1][1].verdict.counts:
        return Ending("harness", "the harness failed on the last turn")
    history = as_told(history)
    top = best(history)
    speedup = history[top][1].speedup_low if top is not None else None
    if agent.target_speedup and speedup is not None and speedup >= agent.target_speedup:
        return Ending("target", f"turn {top} is at least {speedup:.3g} times as fast; asked for {agent.target_speedup:g}")
    if len(history) >= agent.max_turns:
        return Ending("turns", f"agent.max_turns={agent.max_turns}")
    tokens = sum(_tokens(generation) for generation, _ in history)
    if agent.max_tokens and tokens >= agent.max_tokens:
        return Ending("tokens", f"{tokens} tokens; agent.max_tokens={agent.max_tokens}")
    costs = [generation.cost_usd for generation, _ in history]
    if agent.max_cost_usd and None in costs:
        return Ending("cost", f"the cost of turn {costs.index(None)} is unknown, so agent.max_cost_usd cannot hold")
    if agent.max_cost_usd and sum(c or 0.0 for c in costs) >= agent.max_cost_usd:
        return Ending("cost", f"${sum(c or 0.0 for c in costs):.2f}; agent.max_cost_usd={agent.max_cost_usd:g}")
    seconds = sum(generation.seconds + sum(evaluation.seconds_by_stage.values()) for generation, evaluation in history)
    if agent.max_seconds and seconds >= agent.max_seconds:
        return Ending("seconds", f"{seconds:.0f} s; agent.max_seconds={agent.max_seconds:g}")
    since = turns_without_gain(history)
    if agent.patience and since >= agent.patience:
        return Ending("patience", f"the last {since} turns brought nothing; agent.patience={agent.patience}")
    return None


def best(history: History) -> int | None:
    """The turn that is the attempt's result: correct, and the fastest by the lower end of its speedup; None without one."""
    correct = [i for i, (_, evaluation) in enumerate(history) if evaluation.verdict is Verdict.CORRECT]
    return max(correct, key=lambda i: (_speed(history[i][1]), -i), default=None)


def as_told(history: History) -> list[tuple[Generation, Evaluation]]:
    """The turns as the model was told of them, before final judgements took the place of some."""
    return [(generation, _before_final(evaluation)) for generation, evaluation in history]


def _before_final(evaluation: Evaluation) -> Evaluation:
    before = evaluation.extra.get("feedback")
    if before is None:
        return evaluation
    extra = {k: v for k, v in evaluation.extra.items() if k in ("ended", "repeats", "profile", "mechanism")}
    return dataclasses.replace(evaluation, **{**before, "verdict": Verdict(before["verdict"])}, detail="", extra=extra)


def turns_without_gain(history: History) -> int:
    """How many of the last turns are no better than the best before them; a first turn is a gain."""
    top: tuple[int, float] | None = None
    last_gain = 0
    for i, (_, evaluation) in enumerate(history):
        verdict = evaluation.verdict
        here = (LADDER.index(verdict) if verdict in LADDER else -1, _speed(evaluation) if verdict is Verdict.CORRECT else -1.0)
        if top is None or here > top:
            top, last_gain = here, i
    return len(history) - 1 - last_gain


def _speed(evaluation: Evaluation) -> float:
    return -1.0 if evaluation.speedup_low is None or evaluation.shared_device else evaluation.speedup_low


def _tokens(generation: Generation) -> int:
    usage = generation.usage
    return int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
