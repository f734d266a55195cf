"""``pkb audit``: no problem may accept an answer that skips the work.

The answers come from ``vacuous``. They are our own code, so they run in trusted ranks, on the same draws and with the same comparison
as any candidate's; what the sandbox and the clock add is tested elsewhere.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pkb import problem as known
from pkb.config import Config
from pkb.draw import trial_key
from pkb.errors import HarnessError
from pkb.evaluate import vacuous
from pkb.evaluate.ranks import ENVIRONMENT, GroupFailed, RankGroup, Zygote, request_of
from pkb.evaluate.sandbox import Policy
from pkb.problem import VARIANTS

ROUNDS = 2  # every variant comes this often, so that an answer remembered by shape meets new values
PRECISE = "float32"


@dataclass(frozen=True)
class Finding:
    """What the vacuous answers to one problem came to.

    tried: those that skipped something. accepted: those among them that were judged right in every trial on every rank; must be
    empty. lossy: accepted ones that skip no work but precision (``vacuous.Vacuous.lossy``). rejected: why the others were not.
    """

    problem: str
    tried: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    lossy: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)


def audit(problems: Sequence[str], config: Config, progress: Callable[[Finding], None] | None = None) -> dict[str, Any]:
    """Try every vacuous answer on every problem: {"problems": [{"problem", "tried", "accepted", ...}]}.

    progress: called after each problem. Raises UserError where a problem cannot have this size on ``config.ranks`` ranks,
    HarnessError when the machine fails.
    """
    for name in problems:
        known.load(name).shape(config.ranks, config.size.preset, config.dtype, config.size.dims)
    found = []
    with _Auditor(config) as auditor:
        for name in problems:
            found.append(auditor.examine(name))
            if progress is not None:
                progress(found[-1])
    return {"problems": [asdict(f) for f in found]}


class _Auditor:
    """A zygote and one group of audit ranks, replaced when an answer leaves its ranks waiting for each other."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.secret = secrets.token_bytes(32)
        self._catalogue = {v.name: v for v in vacuous.catalogue()}
        self._group: RankGroup | None = None
        self._expected = ("", "")  # (problem, dtype) that the group is set to
        self._zygote = Zygote({}, config.evaluation.limits.start_seconds)

    def __enter__(self) -> _Auditor:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()
        self._zygote.close()

    def examine(self, name: str) -> Finding:
        """All vacuous answers to one problem, the precise ones in a finer dtype."""
        found = Finding(name)
        for dtype, precise in ((self.config.dtype, False), (PRECISE, True)):
            chosen = [v.name for v in self._catalogue.values() if v.precise is precise]
            for answer in chosen:
                self._try(found, dtype, answer)
        return found

    def _try(self, found: Finding, dtype: str, answer: str) -> None:
        limits = self.config.evaluation.limits
        group = self._set_to(found.problem, dtype)
        try:
            replies = group.ask(limits.call_seconds, do="try", name=answer)
        except GroupFailed as error:
            self._drop()
            if error.kind not in ("stuck", "died"):
                raise HarnessError(f"audit of {found.problem}, '{answer}': {error} {error.trace}") from None
            self._note(found, answer, True, str(error))
            return
        raised = next((str(r["raised"]) for r in replies if "raised" in r), "")
        if raised:
            self._drop()
        wrong = raised or next((str(r["wrong"]) for r in replies if r.get("wrong")), "")
        self._note(found, answer, any(r.get("differs") for r in replies) or bool(wrong), wrong)

    def _note(self, found: Finding, answer: str, tried: bool, wrong: str) -> None:
        if tried:
            found.tried.append(answer)
            if wrong:
                found.rejected[answer] = wrong
            else:
                (found.lossy if self._catalogue[answer].lossy else found.accepted).append(answer)

    def _set_to(self, name: str, dtype: str) -> RankGroup:
        """The group, with what is expected of this problem known to its ranks."""
        if self._group is None:
            self._group = self._start()
            self._expected = ("", "")
        if self._expected != (name, dtype):
            trials = list(range(ROUNDS * len(VARIANTS)))
            try:
                self._group.ask(
                    self.config.evaluation.limits.timing_seconds,
                    do="expect",
                    name=name,
                    preset=self.config.size.preset,
                    dims=dict(self.config.size.dims),
                    dtype=dtype,
                    trials=trials,
                    keys=[trial_key(self.secret, name, t).hex() for t in trials],
                )
            except GroupFailed as error:
                raise HarnessError(f"audit of {name}: the reference failed: {error} {error.trace[-300:]}") from None
            self._expected = (name, dtype)
        return self._group

    def _start(self) -> RankGroup:
        environment = {k: v for k, v in os.environ.items() if k in ENVIRONMENT}
        environment.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        request = request_of("audit", self.config.ranks, ["cpu"] * self.config.ranks, "gloo", environment, Policy())
        group = self._zygote.group(request, self.config.evaluation.limits.start_seconds)
        group.started()
        group.meet()
        return group

    def _drop(self) -> None:
        if self._group is not None:
            self._group.kill()
            self._group = None
