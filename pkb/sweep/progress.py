"""The state of a running sweep as numbers: what the live view, ``pkb status`` and the metrics show."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pkb.records import Evaluation, Generation
from pkb.verdict import Verdict

STAGES = ("generate", "build", "wait", "evaluate")
RATE_WINDOW_SECONDS = 300.0


@dataclass
class ModelProgress:
    """One model. stages: attempts that are in each stage now. cost_usd: what is known of it, this session."""

    total: int
    done: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    failed: int = 0  # attempts without an outcome that counts: provider or harness
    cost_usd: float = 0.0
    unavailable: str = ""
    unanswered: Counter[str] = field(default_factory=Counter)  # why -> attempts that were not even asked


@dataclass
class NodeProgress:
    """One node. busy_seconds: time spent judging since it joined."""

    state: str = "ready"
    reason: str = ""
    doing: str = ""
    since: float = 0.0
    joined: float = 0.0
    busy_seconds: float = 0.0
    judged: int = 0


class Progress:
    """Counters that the driver moves; readers take ``snapshot``. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.models: dict[str, ModelProgress] = {}
        self.nodes: dict[str, NodeProgress] = {}
        self.notices: deque[str] = deque(maxlen=5)
        self.notice_count = 0
        self.state = "starting"
        self.started = clock()
        self._recent: deque[float] = deque()  # times of the last outcomes
        self._done_here = 0

    def begin(self, model: str, total: int, done: int) -> None:
        """A model takes part with so many attempts, of which some have their verdict from earlier sessions."""
        self.models[model] = ModelProgress(total, done)

    def move(self, model: str, old: str | None, new: str | None) -> None:
        """One attempt leaves a stage and enters another."""
        stages = self.models[model].stages
        if old is not None:
            stages[old] -= 1
        if new is not None:
            stages[new] += 1

    def generated(self, generation: Generation) -> None:
        """An answer came, or failed to."""
        self.models[generation.key.model].cost_usd += generation.cost_usd or 0.0
        if not generation.status.counts:
            self.models[generation.key.model].failed += 1
        if not generation.tries:
            self.models[generation.key.model].unanswered[generation.error] += 1

    def judged(self, model: str, evaluation: Evaluation) -> None:
        """An attempt has its outcome."""
        entry = self.models[model]
        entry.verdicts[evaluation.verdict.value] += 1
        if evaluation.verdict is Verdict.HARNESS_ERROR:
            entry.failed += 1
        else:
            entry.done += 1
        self._done_here += 1
        self._recent.append(self.clock())
        self._forget_old()

    def notice(self, text: str) -> None:
        """Something that whoever watches should read."""
        self.notices.append(text)
        self.notice_count += 1

    def node(self, name: str, state: str, reason: str = "") -> None:
        """A node's state: ready, quarantined or lost."""
        entry = self.nodes.setdefault(name, NodeProgress(joined=self.clock()))
        entry.state, entry.reason, entry.doing = state, reason, ""

    def node_begins(self, name: str, what: str) -> None:
        """A node starts to judge."""
        entry = self.nodes[name]
        entry.doing, entry.since = what, self.clock()

    def node_ends(self, name: str) -> float:
        """It stops; returns how long it took in seconds."""
        entry = self.nodes[name]
        seconds = self.clock() - entry.since
        entry.busy_seconds += seconds
        entry.judged += 1
        entry.doing = ""
        return seconds

    @property
    def total(self) -> int:
        return sum(m.total for m in self.models.values())

    @property
    def done(self) -> int:
        return sum(m.done for m in self.models.values())

    @property
    def failed(self) -> int:
        return sum(m.failed for m in self.models.values())

    def rate(self) -> float:
        """Outcomes per second over the last five minutes."""
        self._forget_old()
        span = min(RATE_WINDOW_SECONDS, self.clock() - self.started)
        return len(self._recent) / span if span > 0 else 0.0

    def utilisation(self) -> float | None:
        """Share of the time since they joined that nodes spent judging; None without nodes."""
        now = self.clock()
        spans = [now - n.joined for n in self.nodes.values()]
        busy = [n.busy_seconds + (now - n.since if n.doing else 0.0) for n in self.nodes.values()]
        return sum(busy) / sum(spans) if spans and sum(spans) > 0 else None

    def snapshot(self) -> dict[str, Any]:
        """Plain data, for ``progress.json``."""
        rate = self.rate()
        left = self.total - self.done - self.failed
        return {
            "state": self.state,
            "total": self.total,
            "done": self.done,
            "failed": self.failed,
            "seconds": self.clock() - self.started,
            "per_second": rate,
            "seconds_left": left / rate if rate > 0 and left > 0 else None,
            "cost_usd": sum(m.cost_usd for m in self.models.values()),
            "utilisation": self.utilisation(),
            "stages": {s: sum(m.stages[s] for m in self.models.values()) for s in STAGES},
            "verdicts": dict(sum((m.verdicts for m in self.models.values()), Counter())),
            "models": {
                name: {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(m).items()}
                for name, m in self.models.items()
            },
            "nodes": {name: self._node(n) for name, n in self.nodes.items()},
            "notices": list(self.notices),
        }

    def gauges(self) -> dict[tuple[str, str, str], float]:
        """The same as numbers for a monitoring system: (name, tag, tag's value) -> number."""
        s = self.snapshot()
        values: dict[tuple[str, str, str], float] = {
            ("attempts", "state", "total"): s["total"],
            ("attempts", "state", "judged"): s["done"],
            ("attempts", "state", "failed"): s["failed"],
            ("attempts_per_second", "", ""): s["per_second"],
            ("cost_usd", "", ""): s["cost_usd"],
        }
        values |= {("stage", "stage", name): count for name, count in s["stages"].items()}
        values |= {("verdicts", "verdict", name): count for name, count in s["verdicts"].items()}
        values |= {("model_judged", "model", name): m["done"] for name, m in s["models"].items()}
        values |= {("node_busy", "node", name): n["utilisation"] or 0.0 for name, n in s["nodes"].items()}
        values |= {("node_ready", "node", name): float(n["state"] == "ready") for name, n in s["nodes"].items()}
        return values

    def _node(self, n: NodeProgress) -> dict[str, Any]:
        now = self.clock()
        doing = now - n.since if n.doing else 0.0
        span = now - n.joined
        return {
            "state": n.state,
            "reason": n.reason,
            "doing": n.doing,
            "doing_seconds": doing,
            "judged": n.judged,
            "utilisation": (n.busy_seconds + doing) / span if span > 0 else None,
        }

    def _forget_old(self) -> None:
        horizon = self.clock() - RATE_WINDOW_SECONDS
        while self._recent and self._recent[0] < horizon:
            self._recent.popleft()
