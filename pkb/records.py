"""What crosses module borders: the frozen records of a run. One row of Parquet is one of these.

``pkb.store.schema`` states the same fields as pyarrow types; a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pkb.verdict import GenerationStatus, Stage, Verdict


@dataclass(frozen=True, order=True)
class AttemptKey:
    """Identity of a row: one turn of one attempt of one model at one problem in one run."""

    run: str
    model: str
    problem: str  # NNN_stem
    attempt: int  # 0-based
    turn: int = 0  # 0-based


@dataclass(frozen=True)
class Generation:
    """A model's answer and what it cost.

    sent: what really went to the provider. usage: tokens by kind, and whether the provider counted them or we did.
    cost_usd: None when unknown. seconds: wall time of the accepted call. tries: calls made, the failed ones included.
    source: the extracted candidate, or None with ``extraction`` saying why.
    """

    key: AttemptKey
    status: GenerationStatus
    prompt: str
    prompt_hash: str
    answer: str = ""
    reasoning: str = ""
    source: str | None = None
    extraction: str = ""
    finish_reason: str = ""
    sent: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: float | None = None
    seconds: float = 0.0
    tries: int = 1
    request_id: str = ""
    error: str = ""


#: Purposes of judgements: what a model is told of, and what counts afterwards. Only the first is profiled.
FEEDBACK, FINAL = "feedback", "final"


@dataclass(frozen=True)
class Job:
    """One candidate to judge: what the evaluator needs, and nothing of models or runs.

    settings are the evaluator's own (``pkb.config.EvaluationConfig``); they belong to the node, not to the job.
    """

    problem: str
    source: str
    world_size: int
    preset: str
    dims: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "bfloat16"
    device: str = "cpu"
    label: str = ""  # for logs only
    purpose: str = ""  # judgements of different purposes draw independent inputs


@dataclass(frozen=True)
class Evaluation:
    """What became of a candidate. Fields that the verdict does not reach are None.

    detail: one line first, evidence after. stage: where it ended. speedup: median of the pairwise reference/candidate ratios
    with its bootstrap 95 % interval. *_ms: milliseconds per call, the slowest rank. max_error: the largest error of any output
    in units of its tolerance (<= 1 is within). collective_bytes: tensor bytes that torch.distributed sent per rank and call.
    extra: anything further that reports show (clocks, mechanism, evidence), JSON-serialisable.
    """

    problem: str
    verdict: Verdict
    detail: str
    stage: Stage
    world_size: int
    size: str
    dtype: str
    device: str
    trials: int = 0
    max_error: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    reference_ms: float | None = None
    candidate_ms: float | None = None
    shared_device: bool = False
    reuses_output: bool | None = None
    collective_bytes: int | None = None
    measured: str | None = None  # with verdict `forbidden`: the verdict that the values alone deserve
    build_log: str = ""
    sandbox: str = ""
    policy: str = ""
    protocol: int = 0  # version of the timing protocol
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)
    node: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
