"""The configuration of a run: typed dataclasses that YAML and dotlist fill, once.

``conf/default.yaml`` holds only what differs from the defaults here. ``load`` merges (dataclasses <- YAML <- dotlist),
resolves, checks, and returns frozen dataclasses; nothing downstream sees OmegaConf.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb import plain
from pkb.errors import UserError


@dataclass(frozen=True)
class SizeConfig:
    """``size=default size.seq=8192``: a preset and single dimensions that replace the preset's."""

    preset: str = "smoke"
    dims: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TimingConfig:
    """What is timed, and for how long (seconds of wall time where so named)."""

    enabled: bool = True
    iterations: int = 100  # timed calls per side, over all blocks
    blocks: int = 10  # pairs of blocks (reference, candidate), ABBA
    warmup: int = 500  # calls before timing, unless the cap comes first
    warmup_seconds: float = 0.25
    bootstrap: int = 2000


@dataclass(frozen=True)
class LimitsConfig:
    """Deadlines and bounds of one candidate; seconds, bytes."""

    build_seconds: float = 300.0
    load_seconds: float = 120.0
    call_seconds: float = 12.0  # one correctness trial: no progress within this is a deadlock
    timing_seconds: float = 120.0
    start_seconds: float = 120.0  # harness processes: time to start and meet
    memory_bytes: int = 16 * 2**30  # address space is not limited on GPUs, resident memory is
    scratch_bytes: int = 2 * 2**30
    processes: int = 512
    output_bytes: int = 64 * 2**20  # of text that a candidate may print before the rest is dropped


@dataclass(frozen=True)
class EvaluationConfig:
    """How one candidate is judged."""

    trials: int = 5
    timing: TimingConfig = field(default_factory=TimingConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    share_device: bool = False  # several ranks per GPU: verdicts valid, times never count as fast
    tries: int = 2  # on harness errors, on different nodes where there are several
    build_jobs: int = 0  # compiler processes per build, 0: one per core
    cache_dir: str = ""  # builds; default: $XDG_CACHE_HOME/pkb or ~/.cache/pkb
    canary: bool = True


@dataclass(frozen=True)
class IntegrityConfig:
    """collectives: none | metadata | any: what torch.distributed may move in a candidate."""

    collectives: str = "metadata"


@dataclass(frozen=True)
class SandboxConfig:
    """require: none | process | namespaces: the least isolation accepted."""

    require: str = "none"


@dataclass(frozen=True)
class GenerationConfig:
    """Calls to models, whatever the model."""

    max_in_flight: int = 128
    max_retries: int = 6  # of failed calls; rate limits and timeouts have bounds of their own
    max_rate_limited: int = 50  # a rejected call costs nothing but time
    max_timeouts: int = 1  # a call that took all its time was probably billed
    retry_seconds: float = 2.0  # first back-off; doubles, with jitter, up to retry_cap_seconds
    retry_cap_seconds: float = 120.0
    outage_failures: int = 8  # failures in a row that pause a model
    outage_seconds: float = 60.0
    outage_pauses: int = 3  # pauses in a row after which the model is given up for this run


@dataclass(frozen=True)
class PromptConfig:
    """backend: cuda | triton | parallelkittens | shm | auto (shm on cpu, cuda on GPUs)."""

    backend: str = "auto"
    template: str = "one_shot"  # a file of conf/prompts: zero_shot, one_shot, few_shot
    hardware: str = "auto"  # a profile under conf/hardware, or auto


@dataclass(frozen=True)
class ClusterConfig:
    """address: empty starts Ray locally; auto, ray://host:port or host:port join a cluster."""

    address: str = ""
    pack: bool = False  # several disjoint rank groups per node
    nodes: int = 0  # local Ray only: evaluator actors to run; 0: one
    builders: int = 0  # 0: chosen from the cluster's CPUs
    lag: int = 64  # generations that may wait for evaluation before generation pauses
    lost_node_seconds: float = 60.0


@dataclass(frozen=True)
class AgentConfig:
    """Refinement; max_turns=1 is a single shot."""

    max_turns: int = 1
    target_speedup: float = 0.0  # stop early at this; 0: never
    patience: int = 0  # stop after this many turns without improvement; 0: never
    max_tokens: int = 0  # per attempt; 0: no limit
    max_cost_usd: float = 0.0
    max_seconds: float = 0.0
    context_tokens: int = 100_000


@dataclass(frozen=True)
class BudgetConfig:
    """Limits of the whole run; 0: none."""

    cost_usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Config:
    """A run, resolved."""

    name: str = "default"
    run_dir: str = ""  # default: outputs/<name>-<hash of what decides the results>
    models: list[str] = field(default_factory=lambda: ["demo-fast", "demo-slow", "demo-faulty"])
    problems: list[str] = field(default_factory=lambda: [str(i) for i in range(1, 9)])  # numbers, names, ranges 9-32, or all
    attempts: int = 3
    ranks: int = 2
    device: str = "cpu"  # cpu | cuda
    dtype: str = "bfloat16"
    size: SizeConfig = field(default_factory=SizeConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    integrity: IntegrityConfig = field(default_factory=IntegrityConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)

    def problem_names(self) -> list[str]:
        """The chosen problems as NNN_stem, in order, each once; raises UserError for one that does not exist."""
        from pkb import problem

        chosen: list[str] = []
        for item in self.problems:
            if item == "all":
                chosen += problem.names()
            elif match := re.fullmatch(r"(\d+)-(\d+)", item):
                low, high = int(match[1]), int(match[2])
                chosen += [problem.resolve(i) for i in range(low, high + 1)]
            else:
                chosen.append(problem.resolve(item))
        return list(dict.fromkeys(chosen))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for run.yaml."""
        return dataclasses.asdict(self)

    def fingerprint(self) -> str:
        """Hash of what decides the results; where the run lies and on which cluster does not belong to it."""
        data = self.as_dict()
        for key in ("run_dir", "cluster", "budget"):
            data.pop(key)
        data["evaluation"].pop("cache_dir")
        data["evaluation"].pop("build_jobs")
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def run_path(self) -> Path:
        """The run directory: as given, or derived, so that the same command continues the same run."""
        return Path(self.run_dir) if self.run_dir else Path("outputs") / f"{self.name}-{self.fingerprint()}"


CHOICES = {
    "device": ("cpu", "cuda"),
    "dtype": ("bfloat16", "float16", "float32"),
    "integrity.collectives": ("none", "metadata", "any"),
    "sandbox.require": ("none", "process", "namespaces"),
    "prompt.backend": ("auto", "cuda", "triton", "parallelkittens", "shm"),
}
AT_LEAST_ONE = (
    "attempts",
    "evaluation.trials",
    "evaluation.tries",
    "agent.max_turns",
    "generation.max_in_flight",
    "cluster.lag",
)


@functools.cache
def conf_root() -> Path:
    """Where conf/ lies: beside the package (checkout) or inside it (wheel)."""
    here = Path(__file__).resolve().parent
    for root in (here.parent / "conf", here / "_data" / "conf"):
        if root.is_dir():
            return root
    raise UserError("no conf/ folder beside the pkb package; reinstall pkb or run from a checkout")


def load(overrides: Sequence[str] = (), name: str = "default") -> Config:
    """Merge defaults, ``conf/<name>.yaml`` (or a path ending in .yaml) and the dotlist into a checked Config.

    Raises UserError, one line, for an unknown key (naming the nearest), a value of the wrong type or out of range, or a missing
    file. Works without OmegaConf installed when there is no YAML to read beyond the shipped default and overrides are plain.
    """
    data = _merge(_checked(overrides), name)
    config: Config = _build(Config, data, "")
    _check(config)
    return config


def resumed(run: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration that a run directory was begun with; overrides may move it to another cluster, say.

    Raises UserError as ``load`` does, and when ``run`` is no run directory.
    """
    from omegaconf import OmegaConf

    from pkb.store import run as runs

    dotlist = _checked([*overrides, f"run_dir={run}"])
    merged = OmegaConf.merge(OmegaConf.create(runs.read(run)["config"]), OmegaConf.from_dotlist(dotlist))
    config: Config = _build(Config, OmegaConf.to_container(merged, resolve=True), "")
    _check(config)
    return config


def _checked(overrides: Sequence[str]) -> list[str]:
    """Overrides in their typed form; raises UserError for one that is no key=value or names no key."""
    dotlist = [_size_form(item) for item in overrides]
    for item in dotlist:
        if "=" not in item:
            raise UserError(f"'{item}' is not an override; write key=value, e.g. attempts=3")
        _check_key(item.split("=", 1)[0])
    return dotlist


def _size_form(item: str) -> str:
    """``size=default`` and ``size.seq=8192`` as the typed keys ``size.preset`` and ``size.dims.seq``."""
    if item.startswith("size="):
        return "size.preset=" + item[5:]
    if item.startswith("size.") and not item.startswith(("size.preset=", "size.dims.")):
        return "size.dims." + item[5:]
    return item


def _merge(dotlist: Sequence[str], name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith((".yaml", ".yml")) else conf_root() / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in conf_root().glob("*.yaml"))
        raise UserError(f"no configuration '{name}'; known: {', '.join(known)}, or give a path to a .yaml file")
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:  # a bare GPU image: the shipped default holds no keys, and a dotlist is simple enough
        return plain.merge(dotlist, path)
    try:
        merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(dotlist)))
        data = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, ValueError, OSError) as error:
        raise UserError(f"configuration {path.name}: {str(error).splitlines()[0]}") from None
    except Exception as error:  # YAML's own errors share no public base with OmegaConf's
        raise UserError(f"configuration {path.name} is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise UserError(f"configuration {path.name}: the top level must be a mapping")
    return typing.cast(dict[str, Any], data)


def keys(cls: Any = Config, prefix: str = "") -> list[str]:
    """Every dotted key of the configuration."""
    found: list[str] = []
    for f in dataclasses.fields(cls):
        hint = typing.get_type_hints(cls)[f.name]
        found += keys(hint, f"{prefix}{f.name}.") if dataclasses.is_dataclass(hint) else [prefix + f.name]
    return found


def _check_key(key: str) -> None:
    known = keys()
    if key in known or key.startswith("size.dims.") or any(k.startswith(key + ".") for k in known):
        return
    near = difflib.get_close_matches(key, known, 1, 0.0)[0]
    leaf = difflib.get_close_matches(key.rsplit(".", 1)[-1], [k.rsplit(".", 1)[-1] for k in known], 1, 0.75)
    if leaf:
        near = next(k for k in known if k.rsplit(".", 1)[-1] == leaf[0])
    raise UserError(f"unknown key '{key}'; did you mean '{near}'?")


def _build(cls: Any, data: Any, prefix: str) -> Any:
    if not isinstance(data, Mapping):
        raise UserError(
            f"{prefix.rstrip('.')}={data!r}: expected a group of keys, e.g. {prefix}{dataclasses.fields(cls)[0].name}=..."
        )
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            _check_key(f"{prefix}{key}")
            raise UserError(f"unknown key '{prefix}{key}'")
        if cls is Config and key == "size" and isinstance(value, str):
            value = {"preset": value}
        hint = hints[key]
        nested = dataclasses.is_dataclass(hint)
        values[key] = _build(hint, value, f"{prefix}{key}.") if nested else _typed(hint, value, f"{prefix}{key}")
    return cls(**values)


def _typed(hint: Any, value: Any, key: str) -> Any:
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return int(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, str | int | float):
        return str(value)
    if typing.get_origin(hint) is list:
        items = value if isinstance(value, list) else [value]
        return [str(x) for x in items]
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {str(k): _typed(typing.get_args(hint)[1], v, f"{key}.{k}") for k, v in value.items()}
    wanted = getattr(hint, "__name__", str(hint))
    raise UserError(f"{key}={value!r}: expected {wanted}")


def _check(config: Config) -> None:
    def value_of(key: str) -> Any:
        node: Any = config
        for part in key.split("."):
            node = getattr(node, part)
        return node

    for key, allowed in CHOICES.items():
        if value_of(key) not in allowed:
            raise UserError(f"{key}={value_of(key)}: must be one of {', '.join(allowed)}")
    for key in AT_LEAST_ONE:
        if value_of(key) < 1:
            raise UserError(f"{key}={value_of(key)}: must be at least 1")
    for key in keys():
        if key.startswith(("agent.", "budget.")) and not value_of(key) >= 0:  # NaN too
            raise UserError(f"{key}={value_of(key)}: must be 0 (no limit) or more")
    for key in ("models", "problems"):
        if not value_of(key):
            raise UserError(f"{key}=[]: name at least one")
    if config.ranks < 2:
        raise UserError(f"ranks={config.ranks}: a multi-GPU kernel needs at least 2 ranks; set ranks=2 or more")
