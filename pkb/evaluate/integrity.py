"""Rules on how a candidate may move data (docs/integrity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pkb.evaluate.channels import Moved
from pkb.problem import Cost

METADATA_FLOOR, METADATA_CAP = 4 << 10, 64 << 10
SILENCE = 64  # bytes per rank and call on a network that nobody uses: keep-alive packets of idle connections
#: Bytes on the network, per rank of the group, that an operation of torch.distributed takes beside its data, and a rendezvous.
OPERATION, MEETING = 512, 1024


@dataclass(frozen=True)
class Traffic:
    """bytes_per_call: what torch.distributed sent per rank and call. fault: the rule that was broken, with evidence, or ''.

    explained: bytes on the network, per rank and call, that the candidate's operations account for.
    """

    bytes_per_call: int
    fault: str
    explained: float = 0.0

    @property
    def writes(self) -> bool:
        """Whether the rule that was broken is the one on files."""
        return self.fault.startswith("rule files:")


@dataclass(frozen=True)
class Said:
    """What the ranks say of their torch.distributed calls, per call. sent: bytes of the rank that sent most; ops: their number.

    peers: connections that groups made by the candidate account for, over all ranks.
    """

    sent: int
    ops: float
    meetings: float
    names: list[str]
    float_names: list[str]
    peers: int

    @classmethod
    def of(cls, replies: Sequence[Mapping[str, Any]], calls: int) -> Said:
        """From each rank's own account (``traffic.Account.take``) of ``calls`` calls."""

        def most(key: str) -> int:
            return max((int(r.get(key, 0)) for r in replies), default=0)

        return cls(
            most("sent_bytes") // max(1, calls),
            most("op_count") / max(1, calls),
            most("meetings") / max(1, calls),
            _outermost(op for r in replies for op in r.get("ops", [])),
            _outermost(op for r in replies for op in r.get("float_ops", [])),
            sum(int(r.get("peers", 0)) for r in replies),
        )

    def explained(self, ranks: int) -> float:
        """Bytes on the network, per rank and call, that these operations can have caused."""
        return ranks * (2 * self.sent + OPERATION * self.ops + MEETING * self.meetings)


def assess(
    policy: str,
    replies: Sequence[Mapping[str, Any]],
    calls: int,
    moved: Moved,
    cost: Cost,
    explained: float = 0.0,
    private: bool = True,
) -> Traffic:
    """Judge the traffic of ``calls`` settled calls under a policy.

    replies: each rank's own account of its torch.distributed calls. moved: what the kernel counted outside of the ranks. explained:
    bytes on the network that are explained already (by calls that were watched more closely). private: nobody but the ranks'
    own operations uses the network, so that every byte must have its explanation (not so where NCCL has threads of its own).
    """
    said = Said.of(replies, calls)
    limit = min(METADATA_CAP, max(METADATA_FLOOR, 0.01 * cost.sent_bytes))
    most = min(limit, cost.bound_bytes / 2)  # what is half of all that must be moved is the data itself
    network, written = int(moved.network or 0), int(moved.written or 0)
    explained = max(explained, said.explained(len(replies)))
    found = max(said.sent, network if network > limit else 0)
    moving, carried = ", ".join(said.names), f"{found} bytes per rank and call"

    def broken(rule: str, evidence: str, nbytes: int = found) -> Traffic:
        return Traffic(nbytes, f"rule {rule}: {evidence}", explained)

    if policy == "any":
        return Traffic(found, "", explained)
    if moved.sockets or (moved.meetings and not said.meetings):
        number = moved.sockets or moved.meetings
        return broken("sockets", f"{number} Unix sockets in use between or within ranks while calls ran")
    if private and (own := moved.connections - said.peers) > 0:
        return broken("sockets", f"{own} ends of network connections that belong to no process group")
    if written - network > most:
        return broken("files", f"{written} bytes per rank and call written to files or pipes; {most:.0f} are allowed")
    if policy == "none" and (said.names or network > SILENCE):
        nbytes = max(said.sent, network)
        return broken("collectives=none", f"{moving or 'the network interface'} moved {nbytes} bytes per rank and call", nbytes)
    if said.float_names:
        names = ", ".join(said.float_names)
        return broken("collectives=metadata", f"{names} moved floating-point tensors ({said.sent} bytes per call)")
    if found > limit:
        source = moving if said.sent > limit else "the network interface"
        return broken("collectives=metadata", f"{source} moved {carried}; {limit:.0f} are allowed")
    if said.sent and said.sent >= most:
        evidence = f"{moving} moved {carried}; all that the problem must move is {cost.bound_bytes:.0f}"
        return broken("collectives=metadata", evidence)
    if private and network > explained + SILENCE:
        evidence = f"{network} bytes per rank and call on the network, of which operations account for {explained:.0f}"
        return broken("collectives=metadata", evidence, network)
    return Traffic(found, "", explained)


def _outermost(names: Iterable[Any]) -> list[str]:
    """The operations in order; those below torch.distributed's functions (``c10d.allreduce``) only where no function was called."""
    found = sorted({str(n) for n in names})
    return [n for n in found if "." not in n] or found
