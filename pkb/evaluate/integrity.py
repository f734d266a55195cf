"""Rules on how a candidate may move data (docs/integrity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pkb.evaluate.channels import Moved
from pkb.problem import Cost

METADATA_FLOOR, METADATA_CAP = 4 << 10, 64 << 10
SILENCE = 64  # bytes per rank and call on a network that nobody uses: keep-alive packets of idle connections


@dataclass(frozen=True)
class Traffic:
    """bytes_per_call: what torch.distributed sent per rank and call. fault: the rule that was broken, with evidence, or ''."""

    bytes_per_call: int
    fault: str


def assess(policy: str, replies: Sequence[Mapping[str, Any]], calls: int, moved: Moved, cost: Cost) -> Traffic:
    """Judge the traffic of ``calls`` settled calls under a policy.

    replies: each rank's own account of its torch.distributed calls. moved: what the kernel counted outside of the ranks.
    """
    limit = min(METADATA_CAP, max(METADATA_FLOOR, 0.01 * cost.sent_bytes))
    told = max((int(r.get("sent_bytes", 0)) for r in replies), default=0) // max(1, calls)
    floats = _outermost(op for r in replies for op in r.get("float_ops", []))
    used = _outermost(op for r in replies for op in r.get("ops", []))
    network, written = int(moved.network or 0), int(moved.written or 0)
    found = max(told, network if network > limit else 0)
    if policy == "any":
        return Traffic(found, "")
    if moved.sockets:
        return Traffic(found, f"rule sockets: {moved.sockets} Unix sockets in use between or within ranks while calls ran")
    if written - network > limit:
        return Traffic(
            found, f"rule files: {written} bytes per rank and call written to files or pipes; {limit:.0f} are allowed"
        )
    if policy == "none" and (used or network > SILENCE):
        what = ", ".join(used) or "the network interface"
        return Traffic(max(found, network), f"rule collectives=none: {what} moved {max(told, network)} bytes per rank and call")
    if floats:
        return Traffic(
            found, f"rule collectives=metadata: {', '.join(floats)} moved floating-point tensors ({told} bytes per call)"
        )
    if found > limit:
        source = ", ".join(used) if told > limit else "the network interface"
        return Traffic(
            found, f"rule collectives=metadata: {source} moved {found} bytes per rank and call; {limit:.0f} are allowed"
        )
    return Traffic(found, "")


def _outermost(names: Iterable[Any]) -> list[str]:
    """The operations in order; those below torch.distributed's functions (``c10d.allreduce``) only where no function was called."""
    found = sorted({str(n) for n in names})
    return [n for n in found if "." not in n] or found
