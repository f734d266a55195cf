"""Asking models: every question gets exactly one Generation, and what was paid for is neither lost nor bought twice.

The way of one question: budget -> the model's lane (places, rate, outage) -> a place among all calls -> one request under our
own deadline -> its outcome. A failure is classified by what the provider said; it is asked again, or ends the question, or the
model. Notes on the choices: ``docs/generation.md``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.config import BudgetConfig, GenerationConfig
from pkb.extract import extract
from pkb.generate import calls, failures, library, replay
from pkb.generate.answer import Answer, cut_off_tokens, estimate_tokens, judge, own_reading
from pkb.generate.budget import Budget, Spent
from pkb.generate.call import call, parameters_of
from pkb.generate.facts import tokens_of
from pkb.generate.failures import Failure, Kind
from pkb.generate.lane import LONGEST_WAIT, Lane
from pkb.generate.limits import backoff
from pkb.generate.models import Model
from pkb.generate.prices import check_prices, cost_usd, table_version
from pkb.generate.secrets import Redactor
from pkb.generate.spool import Spool
from pkb.generate.wire import Exchange, exchange
from pkb.prompt import prompt_hash
from pkb.records import AttemptKey, Generation
from pkb.verdict import GenerationStatus


@dataclass
class _Question:
    """One question on its way to an answer."""

    model: Model
    key: AttemptKey
    messages: list[dict[str, Any]]
    name: str  # in the spool, and as idempotency key
    prompt: str
    kept: bool  # an earlier session's response waits in the spool: it is paid for, so no limit applies to it
    failures: list[dict[str, Any]]  # those of earlier sessions first
    wasted: list[dict[str, Any]]  # tokens billed for tries without an answer
    tries: int
    answered: int  # tries that the provider answered for certain, with a failure
    asked: bool = False  # in this session
    kinds: Counter[Kind] = field(default_factory=Counter)
    sent: dict[str, Any] = field(default_factory=dict)


class Client:
    """Asks models; one per session of a run, used from one event loop.

    earlier: by model, what the rows of the run cost so far, counted into the budget. spool: a folder (in the run directory) where
    complete responses, and notes of calls, wait until their row is durable; call ``forget`` then. Without it a killed process
    loses them.
    Raises UserError when litellm does not know a model's provider, or a budget in dollars is set and its price is unknown.
    """

    def __init__(
        self,
        config: GenerationConfig,
        models: Sequence[Model],
        budget: BudgetConfig | None = None,
        *,
        earlier: Mapping[str, Spent] | None = None,
        spool: Path | None = None,
    ) -> None:
        self._config = config
        self._litellm = library.load()
        for model in models:
            library.check_provider(model)
        self._redact = Redactor(models)
        self._spool = Spool(spool, self._redact.values) if spool else None
        self._identity = self._spool.identity if self._spool else secrets.token_hex(8)
        self._lanes = {m.name: Lane(m, config) for m in models}
        self._budget = Budget(budget or BudgetConfig(), {m.name: m.budget_usd for m in models}, earlier)
        check_prices(models, budget or BudgetConfig())
        for notes in self._spool.all_notes() if self._spool else ():
            for tokens in calls.unrecorded(notes):
                if lane := self._lanes.get(tokens["model"]):
                    self._budget.charge(lane.model.name, cost_usd(lane.prices, tokens) or 0.0, _billed(tokens))
        self._places = asyncio.Semaphore(config.max_in_flight)
        self._connections: library.Connections | None = None
        self._stopped: str | None = None
        self.under_way = 0  # calls
        self._quiet = asyncio.Event()

    def unavailable(self, name: str) -> str | None:
        """Why this model is not asked any more in this session (bad key, outage, budget), in one line; None while it is."""
        return self._stopped or self._lanes[name].stopped or self._budget.exhausted(name)

    async def generate(self, model: Model, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        """The model's answer to a conversation, with what it cost.

        Never raises for a provider's fault: after the last try the status is ``provider_error`` and ``error`` says why. tries counts
        those of earlier, killed sessions too; it is 0 when nothing was ever asked because the model is unavailable, and such an
        outcome need not be stored.
        """
        question = self._question(model, key, messages)
        while True:
            if (reason := self.unavailable(model.name)) and not question.kept:
                return self._unanswered(question, f"not asked{' again' if question.asked else ''}: {reason}")
            try:
                generation = await self._try(question)
                if generation is not None:
                    return generation
            except Failure as failure:
                if failure.kind is Kind.FILTERED:
                    return self._unanswered(question, str(failure), GenerationStatus.FILTERED)
                if not self._again(question, failure):
                    return self._unanswered(question, str(failure))
                if not self.unavailable(model.name):
                    await asyncio.sleep(self._wait(question, failure))

    def forget(self, generation: Generation) -> None:
        """The row of this generation is durable: what was kept of its calls is not needed any more, unless it is asked again."""
        if self._spool is None:
            return
        name = _name(generation.key)
        if generation.status.counts:
            self._spool.forget(name)
            return
        self._spool.note(name, *calls.of_uncounted(generation), {"recorded": True})
        self._spool.discard(name)

    async def drain(self, reason: str) -> None:
        """Make no new call, for this reason, and wait for those under way: they are paid for."""
        self._stopped = reason
        while self.under_way:
            self._quiet.clear()
            await self._quiet.wait()

    def spent(self) -> dict[str, Spent]:
        """By model, what has been spent so far, earlier sessions included."""
        return dict(self._budget.spent)

    async def close(self) -> None:
        """Close all connections."""
        if self._connections:
            await self._connections.close()

    def _question(self, model: Model, key: AttemptKey, messages: list[dict[str, Any]]) -> _Question:
        prompt = messages[0]["content"] if len(messages) == 1 else json.dumps(messages, ensure_ascii=False)
        name = _name(key)
        kept = self._spool is not None and self._spool.holds(name)
        past = calls.past(self._spool.notes(name) if self._spool else [], kept)
        return _Question(
            model, key, messages, name, prompt, kept, past.failures, past.wasted, len(past.failures), past.answered
        )

    async def _try(self, question: _Question) -> Generation | None:
        """One call, under all limits; None when the model became unavailable while this waited for its turn.

        Raises Failure when the call brings no answer.
        """
        model, lane = question.model, self._lanes[question.model.name]
        if model.provider == replay.PROVIDER and replay.find(model, *_asked(question.key)) is None:
            raise Failure(Kind.REQUEST, "no answer to this question was recorded")
        foreseen = len(question.prompt) // 4 + min(model.max_tokens, 4096)
        worst = {"prompt_tokens": len(question.prompt) // 3, "cached_tokens": 0, "completion_tokens": model.max_tokens}
        first = cost_usd(lane.prices, worst) or 0.0
        async with self._budget.reserve(model.name, first, foreseen), lane.place(foreseen) as epoch, self._places:
            if self.unavailable(model.name) and not question.kept:
                return None
            question.tries += 1
            question.asked = True
            arguments = self._arguments(question)
            if self._spool and not question.kept and model.provider != replay.PROVIDER:
                self._spool.note(question.name, calls.asked(model, arguments))
            wasted = len(question.wasted)
            started = time.monotonic()
            idle = model.idle_seconds
            with exchange(question=question.name, spool=self._spool, carried=lane.carried, idle_seconds=idle) as record:
                self.under_way += 1
                try:
                    answer = await self._ask(question, record, arguments)
                except Failure as failure:
                    self._failed(question, lane, epoch, failure, record, time.monotonic() - started)
                    lane.settle(foreseen, sum(_billed(t) for t in question.wasted[wasted:]))
                    raise
                finally:
                    self.under_way -= 1
                    self._quiet.set()
            seconds = record.seconds if record.seconds is not None else time.monotonic() - started
            lane.success(epoch)
            lane.settle(foreseen, _billed(answer.usage))
            return self._answered(question, lane, answer, record, seconds)

    async def _ask(self, question: _Question, record: Exchange, arguments: Mapping[str, Any]) -> Answer:
        model = question.model
        deadline = asyncio.timeout(model.timeout_seconds)
        try:
            async with deadline:
                reply = await call(self._litellm, model, question.messages, arguments)
            return judge(reply, record)
        except Failure:
            raise
        except Exception as error:
            if (found := own_reading(record)) is not None:
                return judge(found, record)
            if isinstance(error, TimeoutError):
                late = f"no answer within {model.timeout_seconds:g} s"
                silent = f"the stream was silent for {model.idle_seconds:g} s"
                raise Failure(Kind.TIMEOUT, late if deadline.expired() else silent) from None
            raise failures.of_exception(error, record) from None
        finally:
            question.sent = record.request if record.recorded else parameters_of(model)

    def _arguments(self, question: _Question) -> dict[str, Any]:
        model = question.model
        if self._connections is None:
            self._connections = library.Connections(self._litellm, self._config.max_in_flight + 8)
        if model.provider == replay.PROVIDER:
            return {"recording": (model, *_asked(question.key))}
        arguments = self._connections.arguments(model)
        if model.idempotency_header:
            # The same while nobody knows what became of the question, another once the provider has said that it failed.
            value = f"pkb-{self._identity}-{question.name}-{question.answered}"
            arguments["extra_headers"] = {model.idempotency_header: value}
        return arguments

    def _failed(self, question: _Question, lane: Lane, epoch: int, failure: Failure, record: Exchange, seconds: float) -> None:
        """Account for a try without an answer."""
        lane.failure(epoch, failure)
        question.kinds[failure.kind] += 1
        question.answered += record.status > 0
        note: dict[str, Any] = {"kind": failure.kind.value, "status": failure.status, "message": self._redact(failure.message)}
        note |= {"seconds": round(seconds, 3), "retry_after": failure.retry_after, "request_id": record.request_id}
        tokens = tokens_of(record.facts.usage) if record.facts.usage else None
        estimated = cut_off_tokens(record, question.prompt, lane.model.max_tokens)
        if estimated:
            note["estimated_tokens"] = estimated
        question.failures.append(note)
        if self._spool:
            if question.model.provider != replay.PROVIDER:
                self._spool.note(question.name, calls.failed(lane.model, note, tokens))
            self._spool.discard(question.name)
        question.kept = False
        if tokens:
            question.wasted.append(tokens)
        if spent := [t for t in (tokens, estimated) if t]:
            cost = sum(cost_usd(lane.prices, t) or 0.0 for t in spent)
            self._budget.charge(lane.model.name, cost, sum(map(_billed, spent)))

    def _again(self, question: _Question, failure: Failure) -> bool:
        """Whether to ask once more after this failure."""
        kinds, config = question.kinds, self._config
        if (failure.retry_after or 0.0) > LONGEST_WAIT:
            return False
        if (
            not failure.kind.retried
            or kinds[Kind.TIMEOUT] > config.max_timeouts
            or kinds[Kind.RATE_LIMIT] > config.max_rate_limited
        ):
            return False
        return sum(n for kind, n in kinds.items() if kind is not Kind.RATE_LIMIT) <= config.max_retries

    def _wait(self, question: _Question, failure: Failure) -> float:
        config = self._config
        return backoff(sum(question.kinds.values()), config.retry_seconds, config.retry_cap_seconds, failure.retry_after)

    def _answered(self, question: _Question, lane: Lane, answer: Answer, record: Exchange, seconds: float) -> Generation:
        counted = not answer.usage["estimated"]
        if not counted and not answer.usage["prompt_tokens"]:
            answer.usage["prompt_tokens"] = estimate_tokens(question.prompt)
        cost = cost_usd(lane.prices, answer.usage)
        self._budget.charge(lane.model.name, cost or 0.0, _billed(answer.usage))
        text = self._redact(answer.text)
        truncated = answer.status is GenerationStatus.TRUNCATED
        found = extract(text, truncated) if answer.status in (GenerationStatus.OK, GenerationStatus.TRUNCATED) else None
        return self._generation(
            question,
            answer.status,
            answer=text,
            reasoning=self._redact(answer.reasoning),
            source=found.source if found else None,
            extraction=(found.reason or found.status.value) if found else answer.status.value,
            finish_reason=answer.finish_reason,
            usage=self._usage(question, lane, answer.usage | ({"from_spool": True} if record.replayed else {})),
            cost_usd=self._total_cost(question, lane, cost if counted or cost == 0 else None),
            seconds=seconds,
            request_id=self._redact(answer.request_id),
        )

    def _unanswered(
        self, question: _Question, error: str, status: GenerationStatus = GenerationStatus.PROVIDER_ERROR
    ) -> Generation:
        lane = self._lanes[question.model.name]
        cost = self._total_cost(question, lane, 0.0) if question.wasted else None
        usage = self._usage(question, lane, {}) if question.failures else {}
        return self._generation(
            question, status, usage=usage, cost_usd=cost, error=self._redact(error), extraction=status.value
        )

    def _generation(self, question: _Question, status: GenerationStatus, **values: Any) -> Generation:
        sent = {"model": question.model.model, **question.sent}
        return Generation(
            question.key,
            status,
            question.prompt,
            prompt_hash(question.prompt),
            sent=self._redact.mapping(sent),
            tries=question.tries,
            **values,
        )

    def _usage(self, question: _Question, lane: Lane, tokens: Mapping[str, Any]) -> dict[str, Any]:
        billed = sum(_billed(t) for t in [tokens, *question.wasted] if t)
        usage = {**tokens, "billed_tokens": billed}
        usage["prices"] = table_version(lane.model.prices is not None) if lane.prices else None
        if question.failures:
            usage["failed_tries"] = question.failures
        if question.wasted:
            usage["wasted"] = question.wasted
        if estimated := [f["estimated_tokens"] for f in question.failures if f.get("estimated_tokens")]:
            costs = [cost_usd(lane.prices, t) for t in estimated]
            usage["estimated_wasted"] = {
                "tokens": sum(map(_billed, estimated)),
                "cost_usd": None if lane.prices is None else sum(c or 0.0 for c in costs),
            }
        return self._redact.mapping(usage)

    @staticmethod
    def _total_cost(question: _Question, lane: Lane, cost: float | None) -> float | None:
        """Dollars of the answer and of the tries before it that were billed."""
        wasted = [cost_usd(lane.prices, tokens) for tokens in question.wasted]
        return None if cost is None or any(w is None for w in wasted) else cost + sum(w for w in wasted if w is not None)


def _name(key: AttemptKey) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


def _billed(tokens: Mapping[str, Any]) -> int:
    return int(tokens["prompt_tokens"] + tokens["completion_tokens"])


def _asked(key: AttemptKey) -> tuple[str, int, int]:
    return key.problem, key.attempt, key.turn
