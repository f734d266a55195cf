"""Rules on how a candidate may move data (docs/integrity.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pkb.problem import Cost

METADATA_FLOOR, METADATA_CAP = 4 << 10, 64 << 10


@dataclass(frozen=True)
class Traffic:
    """bytes_per_call: what torch.distributed sent per rank and call. fault: the rule that was broken, with evidence, or ''."""

    bytes_per_call: int
    fault: str


def assess(policy: str, replies: Sequence[dict[str, Any]], calls: int, carried: float | None, cost: Cost) -> Traffic:
    """Judge the traffic of ``calls`` settled calls under a policy.

    replies: each rank's own account of its torch.distributed calls. carried: bytes per rank and call on the group's private
    loopback interface, by the kernel's counter; None without a private network.
    """
    limit = min(METADATA_CAP, max(METADATA_FLOOR, 0.01 * cost.sent_bytes))
    told = max((int(r.get("sent_bytes", 0)) for r in replies), default=0) // calls
    floats = sorted({str(op) for r in replies for op in r.get("float_ops", [])})
    moved = sorted({str(op) for r in replies for op in r.get("ops", [])})
    found = max(told, int(carried or 0) if (carried or 0) > limit else 0)
    if policy == "any":
        return Traffic(found, "")
    if policy == "none" and (moved or found > limit):
        return Traffic(found, f"rule collectives=none: {', '.join(moved) or 'unseen traffic'} moved {found} bytes per call")
    if floats:
        return Traffic(
            found, f"rule collectives=metadata: {', '.join(floats)} moved floating-point tensors ({told} bytes per call)"
        )
    if found > limit:
        source = ", ".join(moved) if told > limit else "the network interface"
        return Traffic(
            found, f"rule collectives=metadata: {source} moved {found} bytes per rank and call; {limit:.0f} are allowed"
        )
    return Traffic(found, "")
