"""Which actors go where: machines of a cluster into places for nodes and builders. Plain arithmetic, without Ray."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pkb.config import Config
from pkb.errors import UserError

#: A build takes several times as long as an evaluation, so a node needs several builders to be kept busy.
BUILDERS_PER_NODE = 8
#: Ray refuses more than this for the code that it distributes.
CODE_LIMIT_BYTES = 50 * 2**20


@dataclass(frozen=True)
class Machine:
    """One node of the Ray cluster. local: it belongs to a Ray that was started for this sweep alone."""

    node_id: str
    name: str
    cpus: float
    gpus: int
    local: bool


@dataclass(frozen=True)
class Place:
    """One GpuNode actor: where it goes, what it reserves, and the GPUs of each of its groups (None: CPU ranks).

    Where there are several groups, the actor forms them anew by how the GPUs of its machine are linked.
    """

    node_id: str
    name: str
    cpus: float
    gpus: int
    groups: tuple[tuple[int, ...] | None, ...]

    @property
    def group_names(self) -> list[str]:
        """How the driver names each group."""
        if len(self.groups) == 1:
            return [self.name]
        return [f"{self.name}/{i}" for i in range(len(self.groups))]


def machine_names(earlier: Mapping[str, str], nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Node id -> name of the Ray nodes that are alive: the host's, with its address or part of the id where hosts share a name.

    earlier: the names of a moment ago. A node keeps its name as long as it lives, whoever else comes and goes, because its actor is
    known by it.
    """
    ids = {n["NodeID"] for n in nodes}
    names = {node_id: name for node_id, name in earlier.items() if node_id in ids}
    hosts = Counter(n["NodeManagerHostname"] for n in nodes)
    places = Counter((n["NodeManagerHostname"], n["NodeManagerAddress"]) for n in nodes)
    for n in nodes:
        host, address, node_id = n["NodeManagerHostname"], n["NodeManagerAddress"], n["NodeID"]
        choices = [f"{host}-{node_id[:6]}"]
        if places[host, address] == 1:
            choices.insert(0, f"{host}-{address}")
        if hosts[host] == 1:
            choices.insert(0, host)
        if node_id not in names:
            names[node_id] = next((name for name in choices if name not in names.values()), f"{host}-{node_id}")
    return names


def unfit(machine: Machine, config: Config) -> str | None:
    """Why a machine cannot serve as a node; None when it can."""
    if config.device == "cpu":
        if machine.cpus < 1:
            return "it offers no CPU"
        return (
            None
            if machine.local or machine.cpus >= config.ranks
            else f"{machine.cpus:.0f} CPUs, {config.ranks} ranks asked for"
        )
    needed = 1 if config.evaluation.share_device else config.ranks
    return None if machine.gpus >= needed else f"{machine.gpus} GPUs, {config.ranks} ranks asked for"


def places(machine: Machine, config: Config) -> list[Place]:
    """The GpuNode actors of a machine that can serve: one that owns all of it."""
    if config.device == "cpu":
        count = max(1, config.cluster.nodes) if machine.local else 1
        cpus = min(config.ranks, machine.cpus / count)
        names = [machine.name] if count == 1 else [f"{machine.name}/{i}" for i in range(count)]
        return [Place(machine.node_id, name, float(int(cpus)) if cpus >= 1 else cpus, 0, (None,)) for name in names]
    groups: tuple[tuple[int, ...], ...] = (tuple(range(machine.gpus)),)
    if config.cluster.pack and config.ranks <= machine.gpus // 2:
        groups = tuple(tuple(range(i, i + config.ranks)) for i in range(0, machine.gpus - config.ranks + 1, config.ranks))
    cpus = min(float(config.ranks * len(groups)), max(0.0, machine.cpus - 1))
    return [Place(machine.node_id, machine.name, cpus, machine.gpus, groups)]


def builders(machines: Sequence[Machine], config: Config) -> list[tuple[str, str, float]]:
    """(name, node id, CPUs) of every builder: on CPUs that no node needs, at least one somewhere.

    Machines take turns, so that the first builders are spread.
    """
    nodes = sum(len(p.groups) for m in machines if not unfit(m, config) for p in places(m, config))
    most = config.cluster.builders or BUILDERS_PER_NODE * max(1, nodes)
    spare = {m.node_id: int(_spare_cpus(m, config)) for m in machines}
    found: list[tuple[str, str, float]] = []
    turn = 0
    while len(found) < most and any(count > turn for count in spare.values()):
        for m in machines:
            if spare[m.node_id] > turn and len(found) < most:
                found.append((f"{m.name}/builder{turn}", m.node_id, 1.0))
        turn += 1
    if not found:
        found = [(f"{m.name}/builder0", m.node_id, 0.0) for m in machines[:1]]
    return found


def _spare_cpus(machine: Machine, config: Config) -> float:
    """CPUs that the ranks of this machine's nodes do not need."""
    if unfit(machine, config):
        return machine.cpus
    return machine.cpus - sum(place.cpus for place in places(machine, config))


def local_cpus(config: Config) -> int:
    """The CPUs to declare to a Ray of our own, so that every actor finds room however small the machine is."""
    return max(os.cpu_count() or 1, config.ranks * max(1, config.cluster.nodes) + max(1, config.cluster.builders))


def travelling_code(staging: Path) -> dict[str, Any]:
    """A runtime environment that carries this package, its problems and configuration to nodes that have none of it.

    staging: an empty folder, which may go once Ray has been connected. Raises UserError when the code is too large for Ray.
    """
    import pkb
    from pkb.config import conf_root
    from pkb.problem import problems_root

    package = Path(pkb.__file__).resolve().parent
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "_data")
    shutil.copytree(package, staging / "pkb", ignore=ignore)
    shutil.copytree(package.parent / "actors", staging / "actors", ignore=ignore)
    shutil.copytree(conf_root(), staging / "pkb" / "_data" / "conf", ignore=ignore)
    shutil.copytree(problems_root(), staging / "pkb" / "_data" / "problems", ignore=ignore)
    size = sum(f.stat().st_size for f in staging.rglob("*") if f.is_file())
    if size > CODE_LIMIT_BYTES:
        raise UserError(
            f"pkb with its problems and configuration has {size >> 20} MiB; Ray ships at most {CODE_LIMIT_BYTES >> 20}"
        )
    return {"py_modules": [os.fspath(staging / "pkb"), os.fspath(staging / "actors")]}
