"""Verdicts: the one-word outcome of an evaluation."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Exactly one per evaluation; the first that applies, in this order.

    HARNESS_ERROR stands last and apart: it says nothing about the candidate, is retried, and never counts.
    """

    NO_CODE = "no_code"
    BAD_INTERFACE = "bad_interface"
    FORBIDDEN = "forbidden"
    COMPILE_ERROR = "compile_error"
    LOAD_ERROR = "load_error"
    RUNTIME_ERROR = "runtime_error"
    OUT_OF_MEMORY = "out_of_memory"
    DEADLOCK = "deadlock"
    WRONG_STRUCTURE = "wrong_structure"
    MISMATCH = "mismatch"
    NONDETERMINISTIC = "nondeterministic"
    TAMPERING = "tampering"
    CORRECT = "correct"
    HARNESS_ERROR = "harness_error"

    @property
    def counts(self) -> bool:
        """Whether this outcome counts for or against the model."""
        return self is not Verdict.HARNESS_ERROR


class Stage(StrEnum):
    """Where on the way an evaluation ended."""

    EXTRACT = "extract"
    CHECK = "check"
    BUILD = "build"
    LOAD = "load"
    CORRECTNESS = "correctness"
    TIMING = "timing"
    DONE = "done"


class GenerationStatus(StrEnum):
    """Exactly one per generation; only the first four count as attempts."""

    OK = "ok"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    REFUSED = "refused"
    FILTERED = "filtered"
    PROVIDER_ERROR = "provider_error"

    @property
    def counts(self) -> bool:
        """Whether the attempt belongs in the denominator."""
        return self in (GenerationStatus.OK, GenerationStatus.TRUNCATED, GenerationStatus.EMPTY, GenerationStatus.REFUSED)
