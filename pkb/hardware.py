"""Hardware profiles: ``conf/hardware/*.yaml`` as typed data, for prompts, build flags and physical bounds.

Figures are the vendor's peak values as its datasheet states them (each profile's ``source``), dense, never with sparsity.
A profile is one kind of node; ``h200x2`` is the profile ``h200`` with two GPUs.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pkb.config import Config, conf_root
from pkb.errors import UserError


@dataclass(frozen=True)
class Hardware:
    """One node, or one NVLink domain, of equal devices.

    device: ``cuda`` or ``cpu``. gpus: devices in the domain. arch: what ``TORCH_CUDA_ARCH_LIST`` takes, e.g. ("9.0a",); empty
    on CPU. memory_bytes, memory_bandwidth (bytes/s): of one device. peer_bandwidth: bytes/s that one device can send to its
    peers, one direction. peak_flops: dtype name -> FLOP/s of one device, dense. l2_bytes: last-level cache of one device.
    sms, shared_memory_bytes: multiprocessors, and shared memory of each. multicast: the switch can multicast and reduce
    (NVLS). tma: bulk asynchronous copies. topology, build: one paragraph each, as prompts state them.
    """

    name: str
    title: str
    device: str
    gpus: int
    arch: tuple[str, ...]
    memory_bytes: int
    memory_bandwidth: float
    peer_bandwidth: float
    peak_flops: Mapping[str, float]
    l2_bytes: int
    sms: int
    shared_memory_bytes: int
    multicast: bool
    tma: bool
    topology: str
    build: str
    source: str

    def peak(self, dtype: str) -> float:
        """FLOP/s for a dtype name such as ``bfloat16``; raises UserError when the profile does not state it."""
        if dtype not in self.peak_flops:
            raise UserError(f"hardware profile {self.name} states no peak for {dtype}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[dtype]


def names() -> list[str]:
    """The shipped profiles."""
    return sorted(p.stem for p in (conf_root() / "hardware").glob("*.yaml"))


@functools.cache
def load(name: str) -> Hardware:
    """The profile of that name, optionally with a device count (``h200x2``); raises UserError for an unknown one."""
    stem, count = name, 0
    if name not in names() and (match := re.fullmatch(r"(.+?)x(\d+)", name)):
        stem, count = match[1], int(match[2])
    if stem not in names():
        near = difflib.get_close_matches(stem, names(), 1, 0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names())}"
        raise UserError(f"no hardware profile '{name}'; {hint} (a count may follow, e.g. h200x2)")
    import yaml  # GPU nodes that only evaluate may lack OmegaConf

    data: Any = yaml.safe_load((conf_root() / "hardware" / f"{stem}.yaml").read_text(encoding="utf-8"))
    fields = {f.name for f in dataclasses.fields(Hardware)} - {"name"}
    if set(data) != fields:
        raise UserError(f"conf/hardware/{stem}.yaml: wrong or missing keys: {', '.join(sorted(set(data) ^ fields))}")
    data["arch"] = tuple(data["arch"])
    for key in ("memory_bandwidth", "peer_bandwidth"):
        data[key] = float(data[key])
    data["peak_flops"] = {k: float(v) for k, v in data["peak_flops"].items()}
    for key in ("topology", "build", "source"):
        data[key] = " ".join(data[key].split())
    profile = Hardware(name=name, **data)
    return dataclasses.replace(profile, gpus=count) if count else profile


def of(config: Config) -> Hardware:
    """The profile that a run's prompts describe.

    ``prompt.hardware=auto`` never looks at the machine, so that a prompt is the same wherever it is made: ``cpu`` on CPU ranks,
    ``h200`` otherwise; say ``prompt.hardware=b200x8`` for another. Raises UserError if the profile does not fit the run's
    device or has fewer devices than the run has ranks.
    """
    name = config.prompt.hardware
    profile = load(("cpu" if config.device == "cpu" else "h200") if name == "auto" else name)
    if profile.device != config.device:
        raise UserError(f"prompt.hardware={name} describes a {profile.device} machine, but device={config.device}; change one")
    if profile.gpus < config.ranks:
        raise UserError(f"prompt.hardware={name} has {profile.gpus} devices, but ranks={config.ranks}; name a larger profile")
    return profile
