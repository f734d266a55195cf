"""The physical bound: no call can take less time than its data and arithmetic need on the fastest machine that is known.

A time below it is a falsified measurement, whatever produced it. The bound errs on the slow side: it uses the fastest shipped hardware
profile, the least bytes that any algorithm must send, and a quarter of the stated arithmetic, since a cleverer algorithm may need less.
"""

from __future__ import annotations

from pkb import hardware
from pkb.problem import Cost

ARITHMETIC_SHARE = 0.25
CPU_HEADROOM = 10.0  # a host's caches can be this much faster than the memory bandwidth that its profile states


def bound_ms(cost: Cost, device: str) -> float:
    """Milliseconds below which one call of this cost cannot be, on any machine with a shipped profile of this device."""
    profiles = [p for p in map(hardware.load, hardware.names()) if p.device == device]
    bandwidth = max(p.peer_bandwidth for p in profiles)
    flops = max(peak for p in profiles for peak in p.peak_flops.values())
    headroom = CPU_HEADROOM if device == "cpu" else 1.0
    return 1e3 * max(cost.bound_bytes / bandwidth, ARITHMETIC_SHARE * cost.flops / flops) / headroom
