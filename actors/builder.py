"""A builder as a Ray actor: compiles candidates on spare CPUs, one at a time. Calls into ``pkb``; decides nothing."""

from __future__ import annotations

import pkgutil
import threading
from typing import Any

from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.sweep import actor_process


class Builder:
    """Compiles into the cache of the machine it runs on; what it returns holds the libraries, so that it can travel.

    function: what does it, ``module:name``.
    """

    def __init__(self, config: Config, name: str, function: str) -> None:
        self._removed = actor_process.claim(name)
        self._config, self._function = config, function
        self._ended = threading.Event()

    def ready(self) -> tuple[str, str]:
        """What was left of an earlier owner and is removed now (empty if nothing was), and where this one logs."""
        return self._removed, actor_process.log_path()

    def until_death(self) -> None:
        """Returns when the actor is told to end; a caller that waits for it learns of the actor's death at once."""
        self._ended.wait()

    def close(self) -> None:
        """Remove what this actor kept."""
        actor_process.release()
        self._ended.set()

    def build(self, source: str, device: str) -> Any:
        """A Build, or text that says why the compiler could not be run."""
        try:
            return pkgutil.resolve_name(self._function)(source, device, self._config)
        except (HarnessError, UserError) as error:
            return str(error) or "unexplained harness error"
