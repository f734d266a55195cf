"""From the Parquet of a run to metrics, tables and reports. The public API for analysts is what ``__all__`` names.

Imports happen on first use: the evaluator takes ``pkb.analyze.mechanism`` from here on machines that have no Polars.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pkb.analyze.metrics import attempts, best_of_k, fast_p, geometric_mean_speedup, pass_at_k
    from pkb.analyze.runs import evaluations, generations, open_run

__all__ = [
    "attempts",
    "best_of_k",
    "evaluations",
    "fast_p",
    "generations",
    "geometric_mean_speedup",
    "open_run",
    "pass_at_k",
]

_HOME = {"evaluations": "runs", "generations": "runs", "open_run": "runs"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"pkb.analyze.{_HOME.get(name, 'metrics')}"), name)
    raise AttributeError(f"module 'pkb.analyze' has no attribute '{name}'")
