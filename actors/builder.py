"""A builder as a Ray actor: compiles candidates on spare CPUs, one at a time. Calls into ``pkb``; decides nothing."""

from __future__ import annotations

import threading
from typing import Any

from pkb.config import Config
from pkb.errors import HarnessError, UserError


class Builder:
    """Compiles into the cache of the machine it runs on; what it returns holds the libraries, so that it can travel."""

    def __init__(self, config: Config, name: str) -> None:
        from pkb.sweep import actor_process

        actor_process.claim(name)
        self._config = config
        self._ended = threading.Event()

    def ready(self) -> str:
        """Returns once the actor works."""
        return ""

    def until_death(self) -> None:
        """Never returns; a caller that waits for it learns of the actor's death at once."""
        self._ended.wait()

    def build(self, source: str, device: str) -> Any:
        """A Build, or text that says why the compiler could not be run."""
        from pkb.evaluate.build import build

        try:
            return build(source, device, self._config)
        except (HarnessError, UserError) as error:
            return str(error) or "unexplained harness error"
