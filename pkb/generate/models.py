"""Models as data: ``conf/models/*.yaml`` (or a file of the user's) into typed entries.

Each file maps the name shown in tables to an entry; the keys of an entry are the fields of ``Model``. A name given on the
command line is one of

- ``gpt-5.6``: an entry of any file under ``conf/models``;
- ``my_models.yaml``: every entry of that file; ``my_models.yaml:local-70b``: one of them;
- ``replay:RUN``: every model of an earlier run, answered from its own Parquet without a call.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.config import conf_root
from pkb.errors import UserError


@dataclass(frozen=True)
class Prices:
    """US dollars per million tokens. Reasoning tokens are billed as output."""

    input: float
    output: float
    cached_input: float | None = None  # None: as ``input``


@dataclass(frozen=True)
class Model:
    """One model as it is called.

    model: litellm's id, ``provider/name``. key_env: the environment variable that holds the key; the key itself is never
    stored. rpm, tpm: requests and tokens per minute; max_parallel: calls in flight; 0: no limit of its own. Sampling
    parameters that are None or empty are not sent. thinking_tokens: budget for hidden reasoning, for providers that take
    one. timeout_seconds: the whole call, whatever the client library thinks; idle_seconds: with ``stream``, the longest
    silence. extra: passed to litellm as it stands (``extra_body``, ``api_version``, ...). prices: instead of litellm's
    table. budget_usd: stop asking this model at that cost; 0: no limit. idempotency_header: sent with a value that is the
    same whenever the same question is asked again, so that a provider or proxy that supports it bills it once.
    """

    name: str
    model: str
    api_base: str = ""
    key_env: str = ""
    rpm: int = 0
    tpm: int = 0
    max_parallel: int = 0
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int = 32768
    reasoning_effort: str = ""
    thinking_tokens: int = 0
    timeout_seconds: float = 1800.0
    idle_seconds: float = 600.0
    stream: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    prices: Prices | None = None
    budget_usd: float = 0.0
    idempotency_header: str = "Idempotency-Key"
    replay_run: str = ""  # set by ``replay:RUN``: the run directory that holds the answers

    @property
    def provider(self) -> str:
        """litellm's provider, e.g. ``openai``."""
        return self.model.split("/", 1)[0]

    def key(self) -> str | None:
        """The key, read from the environment at the moment of use; None when the model needs none."""
        return os.environ.get(self.key_env) or None if self.key_env else None


#: Arguments of litellm that ``extra`` may not set, because something else does.
RESERVED = {"model", "messages", "api_base", "api_key", "timeout", "max_retries", "num_retries", "client", "stream", "n"}
POSITIVE = ("max_tokens", "timeout_seconds", "idle_seconds")
NOT_NEGATIVE = ("rpm", "tpm", "max_parallel", "thinking_tokens", "budget_usd")


def load_models(names: Sequence[str], *, need_keys: bool = True) -> list[Model]:
    """The models of these names, in order, each once.

    ``need_keys=False`` skips the look into the environment (for a dry run). Raises UserError, one line, for an unknown name
    (naming the nearest), an unreadable file, an unknown or ill-typed key of an entry, or a key missing from the environment.
    """
    found: dict[str, Model] = {}
    shipped: dict[str, tuple[Path, Any]] | None = None
    for name in names:
        if name.startswith("replay:"):
            from pkb.generate.replay import models_of

            chosen = models_of(Path(name.removeprefix("replay:")))
        elif name.split(":", 1)[0].endswith((".yaml", ".yml")):
            chosen = _from_file(*name.partition(":")[::2])
        else:
            shipped = _shipped() if shipped is None else shipped
            if name not in shipped:
                near = difflib.get_close_matches(name, shipped, 1, 0.4)
                hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(shipped))}"
                raise UserError(f"no model '{name}'; {hint} (or give a YAML file of your own, see conf/models)")
            chosen = [_entry(name, *shipped[name])]
        for model in chosen:
            if model.name in found and found[model.name] != model:
                raise UserError(f"two different models are called '{model.name}'; rename one, rows are told apart by this name")
            if need_keys and model.key_env and not model.key():
                raise UserError(f"model '{model.name}' needs a key: export {model.key_env}=... and run again")
            found[model.name] = model
    return list(found.values())


def names() -> list[str]:
    """Names of the shipped models."""
    return sorted(_shipped())


def _shipped() -> dict[str, tuple[Path, Any]]:
    found: dict[str, tuple[Path, Any]] = {}
    for path in sorted((conf_root() / "models").glob("*.yaml")):
        for name in _read(path):
            if name in found:
                raise UserError(f"model '{name}' is defined in both {found[name][0].name} and {path.name}; remove one")
            found[str(name)] = (path, name)
    return found


def _from_file(file: str, name: str) -> list[Model]:
    path = Path(file)
    if not path.is_file():
        raise UserError(f"no file {file}; give a YAML file that maps model names to entries, as under conf/models")
    entries = _read(path)
    if name and name not in entries:
        raise UserError(f"{file} has no model '{name}'; it has: {', '.join(map(str, entries))}")
    return [_entry(str(n), path, n) for n in ([name] if name else entries)]


def _read(path: Path) -> Any:
    """The file as an OmegaConf mapping, unresolved: an entry is resolved only when it is chosen."""
    from omegaconf import DictConfig, OmegaConf

    try:
        data = OmegaConf.load(path)
    except Exception as error:  # YAML's and OmegaConf's errors share no public base
        raise UserError(f"{path.name} is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, DictConfig):
        raise UserError(f"{path.name}: the top level must map model names to entries")
    return data


def _entry(name: str, path: Path, key: Any) -> Model:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    where = f"{path.name}: {name}"
    entry = _read(path)[key]
    if not isinstance(entry, DictConfig):
        raise UserError(f"{where}: expected keys such as model and key_env")
    try:
        data: Any = OmegaConf.to_container(entry, resolve=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{where}: {str(error).splitlines()[0]}") from None
    model: Model = _typed(Model, {"name": name, **data}, where)
    if "/" not in model.model:
        raise UserError(f"{where}.model={model.model!r}: expected litellm's form provider/name, e.g. openai/{model.model}")
    if taken := sorted(RESERVED & set(model.extra)):
        raise UserError(f"{where}.extra: '{taken[0]}' is set elsewhere; use a key of the entry itself")
    for keys, least in ((POSITIVE, "more than 0"), (NOT_NEGATIVE, "0 or more")):
        for k in keys:
            value = getattr(model, k)
            if value < 0 or (value == 0 and least == "more than 0"):
                raise UserError(f"{where}.{k}={value}: must be {least}")
    return model


def _typed(cls: Any, data: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(cls)
    settable = [k for k in hints if k != "replay_run"]
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in settable:
            near = difflib.get_close_matches(str(key), settable, 1, 0.0)[0]
            raise UserError(f"{where}: unknown key '{key}'; did you mean '{near}'?")
        values[key] = _value(hints[key], value, f"{where}.{key}")
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in values and f.default is f.default_factory]
    if missing:
        raise UserError(f"{where}: {missing[0]} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    options = [o for o in typing.get_args(hint) if o is not type(None)] if type(None) in typing.get_args(hint) else [hint]
    if value is None and len(options) < len(typing.get_args(hint)):
        return None
    wanted = options[0]
    if dataclasses.is_dataclass(wanted) and isinstance(value, Mapping):
        return _typed(wanted, value, where)
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if wanted is str and isinstance(value, str):
        return value
    if typing.get_origin(wanted) is not None and isinstance(value, Mapping):
        return dict(value)
    raise UserError(f"{where}={value!r}: expected {getattr(wanted, '__name__', wanted)}")
