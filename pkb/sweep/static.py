"""Verdicts that need no node: the answer holds no candidate, or one whose text already says that it cannot be right."""

from __future__ import annotations

import functools

from pkb import candidate
from pkb.config import Config
from pkb.evaluate.build import Build
from pkb.records import Evaluation, Generation, Job
from pkb.verdict import GenerationStatus, Stage, Verdict

_NO_ANSWER = {
    GenerationStatus.TRUNCATED: "the answer was cut off by the token limit",
    GenerationStatus.EMPTY: "the answer is empty",
    GenerationStatus.REFUSED: "the model refused",
}


def job_of(generation: Generation, config: Config, purpose: str = "") -> Job:
    """What a node is to judge, and what for (``Job.purpose``)."""
    key = generation.key
    return Job(
        problem=key.problem,
        source=generation.source or "",
        world_size=config.ranks,
        preset=config.size.preset,
        dims=config.size.dims,
        dtype=config.dtype,
        device=config.device,
        label=f"{key.model}/{key.problem}/{key.attempt}.{key.turn}",
        purpose=purpose,
    )


def without_code(generation: Generation, config: Config) -> Evaluation | None:
    """The verdict on an answer without a candidate; None when there is one."""
    if generation.source is not None and generation.status is not GenerationStatus.TRUNCATED:
        return None
    reason = _NO_ANSWER.get(generation.status, "")
    said = (
        [] if generation.status is GenerationStatus.EMPTY else [generation.extraction]
    )  # there is nothing more to say of nothing
    detail = "; ".join(text for text in (reason, *said) if text) or "no code in the answer"
    return outcome(generation.key.problem, config, Verdict.NO_CODE, detail, Stage.EXTRACT)


def by_text(source: str, problem: str, config: Config) -> Evaluation | None:
    """The verdict that a candidate's text alone decides; None when it has to be run."""
    found = _check(source, problem)
    return None if found is None else outcome(problem, config, found[0], found[1], Stage.CHECK)


@functools.lru_cache(maxsize=256)
def _check(source: str, problem: str) -> tuple[Verdict, str] | None:
    """Attempts of one model at one problem are often the same text."""
    return candidate.check(source, problem)


def nothing_to_build(source: str) -> bool:
    """Whether the text names none of the functions that ``pkb.evaluate.build`` looks for."""
    return not any(name in source for name in ("compile_cuda_extension", "load_inline"))


def by_build(build: Build, problem: str, config: Config) -> Evaluation | None:
    """The verdict on a candidate that did not compile; None when it did."""
    if build.ok:
        return None
    first = next((line for line in build.log.splitlines() if line.strip()), "the build failed")
    return outcome(problem, config, Verdict.COMPILE_ERROR, first, Stage.BUILD, build.log, {"build": build.seconds})


def outcome(
    problem: str,
    config: Config,
    verdict: Verdict,
    detail: str,
    stage: Stage,
    build_log: str = "",
    seconds_by_stage: dict[str, float] | None = None,
) -> Evaluation:
    """An evaluation that ended before any rank ran."""
    return Evaluation(
        problem=problem,
        verdict=verdict,
        detail=detail,
        stage=stage,
        world_size=config.ranks,
        size=config.size.preset,
        dtype=config.dtype,
        device=config.device,
        build_log=build_log,
        policy=config.integrity.collectives,
        seconds_by_stage=seconds_by_stage or {},
    )
