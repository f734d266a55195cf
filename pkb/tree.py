"""Nested inputs and outputs of ``solution``: walk them, map them, name their places.

A tree is a tensor, a number, string, bool, None, GroupRef, torch.Size, nn.Linear or other nn.Module, Table, SimpleNamespace,
or a list, tuple, named tuple or dict of trees. The leaves of a Table are its row numbers and values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from pkb.problem import GroupRef
from pkb.table import Table


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure with ``function`` applied to every leaf; modules are copied with their parameters mapped."""
    if isinstance(tree, torch.Size):
        return function(tree)
    if isinstance(tree, list):
        return [map_leaves(function, x) for x in tree]
    if isinstance(tree, tuple):
        mapped = [map_leaves(function, x) for x in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    if isinstance(tree, dict):
        return {k: map_leaves(function, v) for k, v in tree.items()}
    if isinstance(tree, SimpleNamespace):
        return SimpleNamespace(**{k: map_leaves(function, v) for k, v in vars(tree).items()})
    if isinstance(tree, torch.nn.Module):
        return _map_module(function, tree)
    if isinstance(tree, Table):
        return tree.map(function)
    return function(tree)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) in order; paths read like Python, e.g. ``[0].weight`` or ``['loss']``."""
    if isinstance(tree, torch.Size):
        yield path, tree
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        for name, x in zip(tree._fields, tree, strict=True):
            yield from leaves(x, f"{path}.{name}")
    elif isinstance(tree, list | tuple):
        for i, x in enumerate(tree):
            yield from leaves(x, f"{path}[{i}]")
    elif isinstance(tree, dict):
        for k, x in tree.items():
            yield from leaves(x, f"{path}[{k!r}]")
    elif isinstance(tree, SimpleNamespace):
        for k, x in vars(tree).items():
            yield from leaves(x, f"{path}.{k}")
    elif isinstance(tree, torch.nn.Module):
        for k, x in tree.state_dict(keep_vars=True).items():
            yield f"{path}.{k}", x
    elif isinstance(tree, Table):
        yield f"{path}.rows", tree.rows
        yield f"{path}.values", tree.values
    else:
        yield path, tree


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors, in order."""
    return [x for _, x in leaves(tree) if isinstance(x, torch.Tensor)]


def upcast(tree: Any) -> Any:
    """A deep copy with every floating tensor in float64 (complex in complex128), the rest cloned."""

    def wide(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_floating_point():
            return x.detach().to(torch.float64, copy=True)
        if x.is_complex():
            return x.detach().to(torch.complex128, copy=True)
        return x.detach().clone()

    return map_leaves(wide, tree)


def clone(tree: Any) -> Any:
    """A deep copy that keeps strides and ``requires_grad``."""

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_sparse:  # has no strides to keep, and refuses the memory format
            return x.detach().clone().requires_grad_(x.requires_grad)
        return x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)

    return map_leaves(copied, tree)


def to_device(tree: Any, device: Any) -> Any:
    """The same tree with every tensor on ``device``."""
    return map_leaves(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, tree)


def resolve_groups(tree: Any, group_of: Callable[[tuple[int, ...]], Any]) -> Any:
    """The same tree with every GroupRef replaced by ``group_of(ranks)``."""
    return map_leaves(lambda x: group_of(x.ranks) if isinstance(x, GroupRef) else x, tree)


def _map_module(function: Callable[[Any], Any], module: torch.nn.Module) -> torch.nn.Module:
    twin = copy.copy(module)
    twin._parameters = {}
    twin._buffers = {}
    twin._modules = {k: _map_module(function, m) for k, m in module._modules.items() if m is not None}
    for k, p in module._parameters.items():
        value = None if p is None else function(p)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            value = torch.nn.Parameter(value, requires_grad=bool(p is not None and p.requires_grad))
        twin._parameters[k] = value
    for k, b in module._buffers.items():
        twin._buffers[k] = None if b is None else function(b)
    return twin
