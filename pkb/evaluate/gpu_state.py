"""The state of GPUs around a measurement, as nvidia-smi tells it: clocks, power, temperature, and what holds the clocks down.

A figure taken at reduced clocks is no figure of the kernel; nothing here judges that, it is kept beside the times. Asking takes tens of
milliseconds, so a question is put in one place (``ask``) and its answer taken in another (``Question.answer``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SECONDS = 10.0  # for an answer
_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
#: What nvidia-smi has called the bits that say why clocks are low, newest first.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_UNITS = {
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "max_sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "celsius",
}
#: Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReason*).
_BITS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


@dataclass
class Question:
    """A question that is being answered."""

    devices: Sequence[int]
    process: subprocess.Popen[str] | None
    reasons: str = _REASONS[0]

    def answer(self) -> list[dict[str, Any]]:
        """The state of each device, in order; [] when nobody can tell."""
        if self.process is None:
            return []
        try:
            out, _ = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return []
        if self.process.returncode == 0:
            return [_state(line) for line in out.splitlines() if line.strip()]
        later = _REASONS[_REASONS.index(self.reasons) + 1 :]
        return ask(self.devices, later[0]).answer() if later else []


def names(devices: Sequence[int]) -> str:
    """What others call CUDA devices that are numbered as this process sees them: the form of CUDA_VISIBLE_DEVICES, each once."""
    visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v.strip()]
    return ",".join(visible[d] if d < len(visible) else str(d) for d in sorted(set(devices)))


def ask(devices: Sequence[int], reasons: str = _REASONS[0]) -> Question:
    """Begin to ask for the state of CUDA devices, numbered as this process sees them. No devices, no question."""
    shown = sorted(set(devices))
    if not shown:
        return Question((), None)
    query = ",".join((*_FIELDS, reasons))
    command = ["nvidia-smi", f"--id={names(shown)}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
        )
    except OSError:
        return Question(shown, None, reasons)
    return Question(shown, process, reasons)


def _state(line: str) -> dict[str, Any]:
    values = [v.strip() for v in line.split(",")]
    state: dict[str, Any] = {}
    for field, value in zip(_FIELDS, values, strict=False):
        state[_UNITS.get(field, field)] = _number(value) if field in _UNITS else value
    state["held_down_by"] = _reasons(values[len(_FIELDS)]) if len(values) > len(_FIELDS) else None
    return state


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:  # "[N/A]"
        return None


def _reasons(value: str) -> list[str] | None:
    try:
        bits = int(value, 16)
    except ValueError:
        return None
    return [name for bit, name in _BITS.items() if bits & bit]
