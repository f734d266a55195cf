"""How trees and messages cross process borders: JSON and safetensors in length-prefixed frames, never pickles.

A frame is an 8-byte little-endian length and that many bytes. Control messages are JSON objects. A tree travels as two frames:
a JSON skeleton whose tensor leaves name their tensor, and the tensors (``pkb.evaluate.tensors``). What a candidate process sends is
untrusted: every size is bounded before memory is taken.
"""

from __future__ import annotations

import json
import socket
import time
from types import SimpleNamespace
from typing import Any

import torch

from pkb.evaluate import tensors as streams
from pkb.problem import GroupRef
from pkb.table import Table

MAX_MESSAGE = 32 << 20
#: Dtypes that safetensors does not carry travel as their real parts.
_AS_BYTES = {torch.complex128, torch.complex64, torch.complex32}


class WireError(Exception):
    """The other side closed the connection or sent something that is not a frame of this protocol."""


class TooLong(WireError):
    """A frame longer than the receiver allows."""


def send_bytes(link: socket.socket, payload: bytes | memoryview) -> None:
    """Send one frame; blocks until the kernel has taken all of it."""
    link.sendall(streams.LENGTH.pack(len(payload)))
    link.sendall(payload)


def receive_bytes(link: socket.socket, limit: int, deadline: float | None = None) -> bytearray:
    """Receive one frame of at most ``limit`` bytes. Raises TooLong if it is longer, WireError if the peer is gone."""
    buffer = bytearray(_length(link, limit, deadline))
    _fill(link, memoryview(buffer), deadline)
    return buffer


def send_message(link: socket.socket, **fields: Any) -> None:
    """Send one JSON object."""
    send_bytes(link, json.dumps(fields).encode())


def receive_message(link: socket.socket, limit: int = MAX_MESSAGE, deadline: float | None = None) -> dict[str, Any]:
    """Receive one JSON object. Raises WireError when it is none, TimeoutError if it is not there by ``deadline``.

    deadline: on time.monotonic's clock, for the whole message however slowly it drips in; None leaves the socket's own timeout.
    """
    try:
        message = json.loads(bytes(receive_bytes(link, limit, deadline)))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a JSON message: {error}") from None
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


def send_tree(link: socket.socket, tree: Any) -> int:
    """Send a tree; returns the bytes of tensor data sent. Raises TypeError for a leaf that has no form on the wire."""
    skeleton, tensors = encode(tree)
    head, length = streams.size(tensors)
    send_bytes(link, skeleton)
    link.sendall(streams.LENGTH.pack(length))
    for piece in streams.pieces(head, tensors):
        link.sendall(piece)
        del piece  # before the next one is fetched from the device
    return length


def receive_tree(link: socket.socket, limit: int, device: str = "cpu") -> Any:
    """Receive a tree whose tensor data has at most ``limit`` bytes; tensors end in private memory on ``device``.

    Raises WireError for what is no tree.
    """
    skeleton = bytes(receive_bytes(link, MAX_MESSAGE))
    length = _length(link, limit)
    try:
        tensors = streams.receive(lambda buffer: _fill(link, buffer), length, MAX_MESSAGE, device)
        return _restore(json.loads(skeleton), tensors, device)
    except (WireError, OSError):
        raise
    except Exception as error:  # json and torch raise several kinds; all mean the bytes are not a tree
        raise WireError(f"not a tree: {error}") from None


def encode(tree: Any) -> tuple[bytes, dict[str, torch.Tensor]]:
    """(skeleton, its tensors by name, where they lie). Raises TypeError for a leaf that has no form on the wire."""
    tensors: dict[str, torch.Tensor] = {}
    return json.dumps(_describe(tree, tensors)).encode(), tensors


def _describe(x: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return _describe_tensor(x, tensors)
    if isinstance(x, bool | None | str):
        return {"v": x}
    if isinstance(x, int):
        return {"i": str(int(x))}
    if isinstance(x, float):
        return {"f": float(x).hex()}
    if isinstance(x, GroupRef):
        return {"group": list(x.ranks)}
    if isinstance(x, torch.Size):
        return {"size": list(x)}
    if isinstance(x, torch.dtype | torch.device):
        return {type(x).__name__: str(x).removeprefix("torch.")}
    if isinstance(x, list):
        return {"list": [_describe(i, tensors) for i in x]}
    if isinstance(x, tuple):  # named tuples lose their names: only positions are the contract
        return {"tuple": [_describe(i, tensors) for i in x]}
    if isinstance(x, dict):
        return {"dict": [[_describe(k, tensors), _describe(v, tensors)] for k, v in x.items()]}
    if isinstance(x, SimpleNamespace):
        return {"object": {k: _describe(v, tensors) for k, v in vars(x).items()}}
    if isinstance(x, Table):
        return {"table": [x.height, _describe(x.rows, tensors), _describe(x.values, tensors)]}
    if isinstance(x, torch.nn.Linear):
        return {
            "linear": [_describe(x.weight.detach(), tensors), _describe(x.bias if x.bias is None else x.bias.detach(), tensors)]
        }
    raise TypeError(f"a {type(x).__name__} cannot cross the process border")


def _describe_tensor(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
    name = str(len(tensors))
    if x.is_sparse:
        x = x.coalesce()
        parts = [_describe_tensor(x.indices(), tensors), _describe_tensor(x.values(), tensors)]
        return {"sparse": parts, "shape": list(x.shape)}
    order = _memory_order(x)
    x = x.resolve_conj().resolve_neg()  # lazily conjugated tensors have no bytes of their own
    plain = x.detach().permute(order) if order else x.detach()
    entry: dict[str, Any] = {"t": name, "grad": x.requires_grad}
    if order:
        entry["order"] = order
    if plain.dtype in _AS_BYTES:
        entry["as"] = str(plain.dtype).removeprefix("torch.")
        plain = torch.view_as_real(plain)
    tensors[name] = plain
    return entry


def _memory_order(x: torch.Tensor) -> list[int]:
    """Dimensions from slowest to fastest in memory if x is dense but permuted; [] if contiguous or not dense."""
    if x.is_contiguous() or x.numel() < 2:
        return []
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    return order if x.permute(order).is_contiguous() else []


def _restore(x: Any, tensors: dict[str, torch.Tensor], device: str) -> Any:
    if not isinstance(x, dict) or not x:
        raise WireError("not a tree: malformed skeleton")
    kind = next(iter(x))
    value = x[kind]
    match kind:
        case "t":
            return _restore_tensor(x, tensors)
        case "v" if value is None or isinstance(value, bool | str):
            return value
        case "i":
            return int(value)
        case "f":
            return float.fromhex(value)
        case "group":
            return GroupRef(tuple(int(r) for r in value))
        case "size":
            return torch.Size(value)
        case "dtype" if isinstance(dtype := getattr(torch, value), torch.dtype):
            return dtype
        case "device":
            return torch.device(device)
        case "list":
            return [_restore(i, tensors, device) for i in value]
        case "tuple":
            return tuple(_restore(i, tensors, device) for i in value)
        case "dict":
            return {_restore(k, tensors, device): _restore(v, tensors, device) for k, v in value}
        case "object":
            return SimpleNamespace(**{str(k): _restore(v, tensors, device) for k, v in value.items()})
        case "linear":
            weight, bias = (_restore(i, tensors, device) for i in value)
            layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            if bias is not None:
                layer.bias = torch.nn.Parameter(bias, requires_grad=False)
            return layer
        case "table":
            height, rows, values = value
            return Table(int(height), _restore(rows, tensors, device), _restore(values, tensors, device))
        case "sparse":
            indices, values = (_restore(i, tensors, device) for i in value)
            return torch.sparse_coo_tensor(indices, values, x["shape"], is_coalesced=True, check_invariants=True)
    raise WireError(f"not a tree: malformed leaf of kind {kind[:20]!r}")


def _restore_tensor(x: dict[str, Any], tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    plain = tensors.pop(x["t"])  # each once: a skeleton cannot ask for more memory than its payload has bytes
    if "as" in x:
        plain = torch.view_as_complex(plain)
    if "order" in x:
        plain = plain.permute(sorted(range(plain.dim()), key=lambda d: x["order"][d]))
    return plain.requires_grad_(True) if x.get("grad") else plain


def _length(link: socket.socket, limit: int, deadline: float | None = None) -> int:
    field = bytearray(streams.LENGTH.size)
    _fill(link, memoryview(field), deadline)
    (length,) = streams.LENGTH.unpack(field)
    if length > limit:
        raise TooLong(f"{length} bytes where at most {limit} are allowed")
    return int(length)


def _fill(link: socket.socket, view: memoryview, deadline: float | None = None) -> None:
    filled = 0
    while filled < len(view):
        if deadline is not None:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("the message is not there in time")
            link.settimeout(left)
        got = link.recv_into(view[filled:])
        if not got:
            raise WireError("the other side closed the connection")
        filled += got
