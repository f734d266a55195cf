"""Input sets that cannot be read before their turn: what is sent is combined with random words, which follow from a key that comes later.

Where no row of a problem's inputs may change from call to call, there are no chains of the kind in ``pkb.evaluate.chain``. There every
input set has a key of its own, which the parent gives to a rank only when the rank has named the sum of its answer before. So nothing
can be answered ahead of its turn, whatever the inputs are.
"""

from __future__ import annotations

from typing import Any

import torch

from pkb import tree

KEY_BITS = 63


def veiled(inputs: Any, key: int, device: str) -> Any:
    """A copy of an input set that tells nothing of its tensors' contents; sparse tensors stay as they are."""
    return lifted(tree.clone(inputs), key, device)


def lifted(inputs: Any, key: int, device: str) -> Any:
    """An input set as it was before ``veiled``, in the same memory. ``key``: of KEY_BITS; ``device``: where its words are drawn.

    The words are those of torch's generator of that device, XORed in, a stream through all tensors in order.
    """
    words = torch.Generator(device).manual_seed(key)

    def apply(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and not x.is_sparse and x.numel():
            _mix(x.detach(), words)
        return x

    with torch.no_grad():
        return tree.map_leaves(apply, inputs)


def _mix(x: torch.Tensor, words: torch.Generator) -> None:
    """XOR the bytes of a dense tensor with random ones."""
    flat = x.as_strided((x.numel(),), (1,)).view(torch.uint8)
    whole = flat.numel() - flat.numel() % 8
    if x.storage_offset() * x.element_size() % 8:
        whole = 0  # no view of 64 bits begins there
    for part, dtype in ((flat[:whole].view(torch.int64), torch.int64), (flat[whole:], torch.uint8)):
        if part.numel():
            noise = torch.empty(part.numel(), dtype=torch.int64, device=words.device)
            noise.random_(-(1 << 63), None, generator=words)
            part.bitwise_xor_(noise.to(device=part.device, dtype=dtype))
