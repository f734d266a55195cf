"""The driver: takes every attempt of a plan from prompt to recorded verdict, keeping the nodes busy.

    plan -> generate -> (extract, check) -> build -> wait -> evaluate -> record

One coroutine follows one attempt; how many there are at once is bounded by ``Lag`` (generations in flight, answers waiting),
so that a slow stage holds back the ones before it. ``Judges`` owns the two last stages before the record: builders and nodes.
A stage hands over only what is durable: an answer is on disk before it is built, so a kill at any moment loses no answer and
repeats none. This module and ``judges`` decide about every try; neither Ray nor the client library repeats anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pkb.config import Config
from pkb.records import FEEDBACK, FINAL, AttemptKey, Evaluation, Generation
from pkb.refine import attempt as attempts
from pkb.refine.limits import History, best
from pkb.refine.resume import Past, confirmed
from pkb.store.rows import evaluation_row, generation_row
from pkb.sweep import static
from pkb.sweep.backend import Backend, Generator
from pkb.sweep.judges import Judges, Waiting
from pkb.sweep.lag import Lag
from pkb.sweep.plan import Plan
from pkb.sweep.progress import Progress
from pkb.sweep.recorder import Recorder, log_path, of_attempt

#: The next question of an attempt, given its turns so far; None when the attempt is over.
Conversation = Callable[[AttemptKey, History], list[dict[str, Any]] | None]


class Driver:
    """One session of a run.

    models: name -> the generator's own description of the model. conversation: what to ask, and when to stop; a ``Refinement``
    also knows answers that need no judging, and has every result judged once more, apart from the feedback.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        recorder: Recorder,
        generator: Generator,
        backend: Backend,
        models: dict[str, Any],
        conversation: Conversation,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.progress = progress or Progress()
        self._plan, self._recorder, self._generator = plan, recorder, generator
        self._models, self._conversation = models, conversation
        self._refinement = conversation if isinstance(conversation, attempts.Refinement) else None
        self._lag = Lag(config.generation.max_in_flight, config.cluster.lag)
        self._judges = Judges(config, backend, recorder, self.progress)
        for model in plan.models:
            self.progress.begin(model, len(plan.problems) * plan.attempts, plan.count_judged(model))

    async def run(self, unjudged: Iterable[Generation | Past] = ()) -> None:
        """Work until every attempt of the plan has an outcome. unjudged: answers, or turns, of earlier sessions' attempts.

        Raises HarnessError when the session cannot go on: no node left, the disk full. Cancelling it is a clean stop: what was
        handed to the recorder is written.
        """
        self.progress.state = "running"
        recording = asyncio.create_task(self._recorder.run(), name="recorder")
        judging = asyncio.create_task(self._judges.run(), name="judges")
        work = asyncio.create_task(self._feed_all(unjudged), name="feed")
        try:
            await self._recorder.event("session", state="started")
            await asyncio.wait({recording, judging, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, judging):
                task.cancel()
            ended = list(await asyncio.gather(work, judging, return_exceptions=True))
            recording.cancel()
            ended += await asyncio.gather(recording, return_exceptions=True)
            await self._recorder.drain()
        for error in ended:
            _raise_first(error)

    async def _feed_all(self, unjudged: Iterable[Generation | Past]) -> None:
        async with asyncio.TaskGroup() as group:
            for model in self._plan.models:
                if self._plan.count_to_generate(model):
                    self._lag.open(model)
                    group.create_task(self._feed(model, group))
            for found in unjudged:
                past: Past = [(found, None)] if isinstance(found, Generation) else found
                await self._lag.adopt()
                group.create_task(self._attempt(replace(past[0][0].key, turn=0), past))

    async def _feed(self, model: str, group: asyncio.TaskGroup) -> None:
        """Start a model's attempts one after the other, as fast as there is room for them."""
        for key in self._plan.to_generate(model):
            await self._lag.start(model)
            if reason := self._generator.unavailable(model):
                self._lag.give_back(model)
                self.progress.models[model].unavailable = reason
                self.progress.notice(f"{model}: {reason}; its other attempts wait for the next session")
                await self._recorder.event("model unavailable", model=model, reason=reason)
                break
            self.progress.move(model, None, "generate")
            group.create_task(self._attempt(key))
        await self._lag.close(model)

    async def _attempt(self, key: AttemptKey, past: Past | None = None) -> None:
        """One attempt, turn by turn, from the first question (or what earlier sessions had of it) to its last verdict."""
        history: list[tuple[Generation, Evaluation]] = []
        for generation, judged in past or ():
            if judged is None:
                self.progress.move(key.model, None, "build")
                judged = await self._judge(generation, history)
            history.append((generation, judged))
        while not history or history[-1][1].verdict.counts:
            messages = self._conversation(key, history)
            if messages is None:
                await self._confirm(history)
                break
            if history:
                self._lag.again(key.model)
                self.progress.move(key.model, None, "generate")
            generation = await self._generate(replace(key, turn=len(history)), messages)
            if not generation.status.counts:  # the next session goes on; until then its result is to be one that was confirmed
                await self._confirm(history)
                await self._lag.judged()
                return
            history.append((generation, await self._judge(generation, history)))
        top = best(history)
        self.progress.judged(key.model, history[-1 if top is None else top][1])
        await self._lag.judged()

    async def _confirm(self, history: list[tuple[Generation, Evaluation]]) -> None:
        """Judge the attempt's result once more, in fresh processes and on inputs that no feedback was about.

        What this finds takes the place of the turn's row, so another turn may be the best then; that one is judged likewise.
        """
        while self._refinement is not None and not confirmed(history):
            turn = best(history)
            assert turn is not None
            generation, before = history[turn]
            self.progress.move(generation.key.model, None, "build")
            item = Waiting(generation, static.job_of(generation, self.config, FINAL), _future())
            judged = await self._judges.judge(item)
            if not judged.verdict.counts:
                self.progress.move(generation.key.model, item.stage, None)
                self.progress.notice(
                    f"{item.job.label}: its final judgement failed ({judged.detail}); the next session repeats it"
                )
                return
            for i, (same, earlier) in enumerate(history):
                if same.source == generation.source and earlier.verdict is before.verdict:
                    history[i] = (same, attempts.final(judged, earlier))
                    await self._record(*history[i], item, "confirmed", instead=True)
            self.progress.move(generation.key.model, item.stage, None)

    async def _generate(self, key: AttemptKey, messages: list[dict[str, Any]]) -> Generation:
        generation = await self._generator.generate(self._models[key.model], key, messages)
        self.progress.generated(generation)
        line = of_attempt(
            key,
            "generated",
            status=generation.status.value,
            seconds=round(generation.seconds, 3),
            tries=generation.tries,
            cost_usd=generation.cost_usd,
            finish_reason=generation.finish_reason,
            extraction=generation.extraction,
            error=generation.error,
        )
        if generation.tries:
            again = key in self._plan.replace_generations
            await self._recorder.record("generations", generation_row(generation), log_path(key), [line], instead=again)
            self._generator.forget(generation)
        self.progress.move(key.model, "generate", "build" if generation.status.counts else None)
        await self._lag.generated(key.model)
        return generation

    async def _judge(self, generation: Generation, history: History) -> Evaluation:
        """The verdict on one answer, recorded; the attempt is in stage "build" when this begins."""
        key, config, refinement = generation.key, self.config, self._refinement
        purpose = FEEDBACK if refinement is not None else ""
        item = Waiting(generation, static.job_of(generation, config, purpose), _future())
        evaluation = static.without_code(generation, config)
        if evaluation is None and refinement is not None:
            evaluation = refinement.known(generation, history)
        if evaluation is None and generation.source is not None:
            evaluation = static.by_text(generation.source, key.problem, config)
        evaluation = evaluation or await self._judges.judge(item)
        if refinement is not None:
            evaluation = refinement.concluded(generation, evaluation, history)
        await self._record(generation, evaluation, item, "judged")
        self.progress.move(key.model, item.stage, None)
        return evaluation

    async def _record(
        self, generation: Generation, evaluation: Evaluation, item: Waiting, what: str, instead: bool = False
    ) -> None:
        key = generation.key
        line = of_attempt(
            key,
            what,
            verdict=evaluation.verdict.value,
            stage=evaluation.stage.value,
            detail=evaluation.detail,
            node=evaluation.node,
            ended=evaluation.extra.get("ended", ""),
        )
        row = evaluation_row(key, evaluation, len(item.failures), log_path(key))
        await self._recorder.record("evaluations", row, log_path(key), [line], instead)


def _future() -> asyncio.Future[Evaluation]:
    return asyncio.get_running_loop().create_future()


def _raise_first(error: BaseException | None) -> None:
    """Raise what ended a task, of a group the first; being cancelled is no error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None and not isinstance(error, asyncio.CancelledError):
        raise error
