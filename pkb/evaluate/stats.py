"""Speedup from paired blocks: the median of ratios and its bootstrap interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence


def median_interval(ratios: Sequence[float], resamples: int, seed: int = 0) -> tuple[float, float, float]:
    """(median, low, high): percentile bootstrap of the median at 95 % (Efron 1979). Needs at least one ratio."""
    middle = statistics.median(ratios)
    if len(ratios) < 2:
        return middle, middle, middle
    dice = random.Random(seed)
    n = len(ratios)
    medians = sorted(statistics.median(dice.choices(ratios, k=n)) for _ in range(resamples))
    return middle, medians[int(0.025 * (resamples - 1))], medians[int(0.975 * (resamples - 1))]
