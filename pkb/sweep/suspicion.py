"""Whether an attempt brings machines down, or only stood where they fell.

An attempt whose evaluation ends in a harness error is tried again elsewhere. It must not be tried for ever, nor be blamed for
what happens to others as well. So it is given up once it has failed ``tries`` times and failures of the *other* attempts are
too rare to explain that: with their rate L per second of judging (from what this run has seen), an attempt that needs t seconds
fails by chance with probability 1 - exp(-L t), and n times in a row with the n-th power of that. Among many attempts somebody is
unlucky, so what counts is how many of all that were judged would be by chance: that probability times their number.
"""

from __future__ import annotations

import math

#: When chance alone would bring fewer attempts than this to so many failures, it is no explanation.
IMPLAUSIBLE = 1e-2
#: Nothing is tried more often than this, whatever the cluster does.
MOST_TRIES = 12


class Suspicion:
    """The failures of a run so far."""

    def __init__(self, tries: int) -> None:
        self._tries = tries
        self._seconds = 0.0  # of judging, all attempts
        self._failures = 0
        self._judged = 0

    def judged(self, seconds: float) -> None:
        """An evaluation that ended well took this long."""
        self._seconds += seconds
        self._judged += 1

    def failed(self, seconds: float) -> None:
        """An evaluation ended in a harness error after this long."""
        self._seconds += seconds
        self._failures += 1

    def guilty(self, failures: int, seconds: float) -> bool:
        """Whether an attempt with so many failures, ``seconds`` of judging in all, is to be given up.

        Both are already contained in what ``failed`` was told.
        """
        if failures < self._tries:
            return False
        if failures >= MOST_TRIES:
            return True
        others = self._failures - failures
        rate = others / max(self._seconds - seconds, 1.0)
        by_chance = 1 - math.exp(-rate * max(seconds / failures, 1.0))
        return (self._judged + 1) * by_chance**failures < IMPLAUSIBLE
