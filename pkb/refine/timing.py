"""What a model is told about the time of a correct answer: how far from reference and bound, where it goes, what it could use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pkb.errors import UserError
from pkb.hardware import Hardware
from pkb.records import Evaluation
from pkb.refine.words import say

#: Below this bound a call is launches and waits.
LATENCY_MS = 0.001


def timing_parts(evaluation: Evaluation, source: str, machine: Hardware) -> Iterator[str]:
    """Paragraphs on speed, profile and mechanism, as far as the evaluation holds them."""
    if evaluation.speedup is None or evaluation.candidate_ms is None or evaluation.reference_ms is None:
        yield say("parts", "untimed")
    else:
        yield say(
            "parts",
            "timing",
            candidate_ms=f"{evaluation.candidate_ms:.4g}",
            reference_ms=f"{evaluation.reference_ms:.4g}",
            speedup=f"{evaluation.speedup:.3g}",
            low=f"{evaluation.speedup_low or 0.0:.3g}",
            high=f"{evaluation.speedup_high or 0.0:.3g}",
            bound=_bound(evaluation, machine),
        )
    profile = evaluation.extra.get("profile")
    if isinstance(profile, Mapping) and profile.get("ranks"):
        yield say("parts", "profile", table=_table(profile), top=_top(profile))
    yield _mechanism(evaluation, source, machine)


def _bound(evaluation: Evaluation, machine: Hardware) -> str:
    from pkb.analyze.roofline import bound

    try:
        least = bound(evaluation.problem, evaluation.world_size, evaluation.size, evaluation.dtype, machine)
    except (UserError, ValueError):  # a profile without this dtype's peak
        return ""
    why = {"interconnect": "the interconnect", "compute": "the arithmetic", "memory": "the memory bandwidth"}[least.binding]
    share = least.bound_ms / evaluation.candidate_ms if evaluation.candidate_ms else 0.0
    text = "bound" if least.bound_ms >= LATENCY_MS else "bound_latency"
    return " " + say("parts", text, bound_ms=f"{least.bound_ms:.2g}", binding=why, share=f"{share:.1%}").strip()


def _mechanism(evaluation: Evaluation, source: str, machine: Hardware) -> str:
    from pkb.analyze.mechanism import mechanism

    found = evaluation.extra.get("mechanism") or mechanism(source)
    used = [str(m) for m in found.get("used", [])]
    offered = ["copy engine", "load/store"]
    if evaluation.device == "cuda":
        offered += [name for name, there in (("tma", machine.tma), ("nvls", machine.multicast)) if there]
    others = [m for m in offered if m not in used]
    return say(
        "parts", "mechanism", used=", ".join(used) or "nothing that was recognised", others=", ".join(others) or "nothing more"
    )


def _table(profile: Mapping[str, Any]) -> str:
    names = ["communication", "compute", "overlapped", "fused", "idle"]
    names = [n for n in names if n != "fused" or any(r["fused"] for r in profile["ranks"])]
    on_cpu = all(r["gaps"] is None for r in profile["ranks"])
    titles = ["outside PyTorch's operators" if n == "idle" and on_cpu else n for n in names]
    head = [f"| rank | ms per call | {' | '.join(titles)} |", "|---" * (len(names) + 2) + "|"]
    return "\n".join(
        [
            *head,
            *(
                f"| {r['rank']} | {r['call_ms']:.4g} | " + " | ".join(f"{r[n]:.0%}" for n in names) + " |"
                for r in profile["ranks"]
            ),
        ]
    )


def _top(profile: Mapping[str, Any]) -> str:
    first = profile["ranks"][0]
    top = [f"- {entry['name']}: {entry['share']:.0%} ({entry['count']} times, {entry['kind']})" for entry in first["top"][:6]]
    gaps = first["gaps"]
    idle = (
        f" ({gaps['count']:g} gaps per call between operations of the device, the longest {gaps['longest_us']:g} us)"
        if gaps
        else ""
    )
    return "\n".join([f"What takes longest on rank {first['rank']}{idle}:", *top]) if top else ""
