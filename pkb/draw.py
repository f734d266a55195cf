"""Random numbers for inputs: keyed, reproducible in any trusted process, unguessable without the key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class Draw:
    """A stream of random tensors determined by (key, label).

    Tensors come on ``device`` and, for floating point, in the requested dtype unless ``dtype`` says otherwise. The same key,
    label, variant and device give the same numbers in any process.
    """

    def __init__(self, key: bytes, label: bytes, variant: str, dtype_name: str, device: str) -> None:
        self._seed = int.from_bytes(hmac.new(key or b"\0", label, hashlib.sha256).digest()[:8], "little") >> 1
        self.variant = variant
        self._dtype_name = dtype_name
        self.device = device

    @cached_property
    def generator(self) -> Any:
        """The underlying ``torch.Generator``."""
        import torch

        return torch.Generator(device=self.device).manual_seed(self._seed)

    @property
    def dtype(self) -> Any:
        import torch

        return getattr(torch, self._dtype_name)

    def randn(self, *shape: int, scale: float = 1.0, dtype: Any = None) -> Any:
        """Normal numbers of standard deviation ``scale``, whatever the trial's variant."""
        import torch

        x = torch.randn(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (x * scale if scale != 1.0 else x).to(dtype or self.dtype)

    def values(self, *shape: int, scale: float = 1.0, dtype: Any = None) -> Any:
        """Data of RMS about ``scale`` in the manner of the trial's variant.

        plain, ragged, edge: normal. integers: uniform integers in [-8, 8] (not scaled), so that sums of up to 16 of them are
        exact in bfloat16. wide: normal times 2**u, u uniform in [-8, 2]: non-integers over a large dynamic range.
        """
        import torch

        if self.variant == "integers":
            return self.integers(-8, 9, *shape).to(dtype or self.dtype)
        if self.variant == "wide":
            x = torch.randn(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
            u = torch.rand(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
            return (x * torch.exp2(10 * u - 8) * scale).to(dtype or self.dtype)
        return self.randn(*shape, scale=scale, dtype=dtype)

    def uniform(self, low: float, high: float, *shape: int, dtype: Any = None) -> Any:
        """Uniform numbers in [low, high)."""
        import torch

        x = torch.rand(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (x * (high - low) + low).to(dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: Any = None) -> Any:
        """Uniform integers in [low, high), int64 unless ``dtype`` says otherwise."""
        import torch

        x = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return x if dtype is None else x.to(dtype)

    def integer(self, low: int, high: int) -> int:
        """One Python integer in [low, high)."""
        return int(self.integers(low, high, 1).item())

    def real(self, low: float, high: float) -> float:
        """One Python float in [low, high)."""
        import torch

        return float(self.uniform(low, high, 1, dtype=torch.float64).item())

    def permutation(self, n: int) -> Any:
        """A random order of 0..n-1, int64."""
        import torch

        return torch.randperm(n, generator=self.generator, device=self.device)

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.integer(0, len(options))]

    def split(self, total: int, parts: int, least: int = 0) -> list[int]:
        """``parts`` random counts, each at least ``least``, that add up to ``total`` (uneven on purpose)."""
        free = total - least * parts
        if free < 0:
            raise ValueError(f"cannot split {total} into {parts} parts of at least {least}")
        cuts = sorted(int(c) for c in self.integers(0, free + 1, parts - 1).tolist())
        edges = [0, *cuts, free]
        return [edges[i + 1] - edges[i] + least for i in range(parts)]


def new_secret() -> bytes:
    """A run's secret: 32 random bytes that stay in the trusted parent."""
    return secrets.token_bytes(32)


def trial_key(secret: bytes, problem: str, trial: int) -> bytes:
    """The key of one trial's draws: HMAC-SHA256(secret, problem/trial)."""
    return hmac.new(secret, f"{problem}/{trial}".encode(), hashlib.sha256).digest()
