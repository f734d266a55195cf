"""Tensors on a socket in the format of safetensors, sent from where they lie and received where they will stay.

The format is an 8-byte little-endian length, a JSON header of that many bytes (name -> dtype, shape, offsets), and the tensors' bytes
one after the other (github.com/huggingface/safetensors). Its library builds the whole of that in memory on either side, several copies
that cost five times what the socket does (docs/measurements.md, "Answers across the process border"); tests hold the two together.
What a candidate sends is untrusted: everything that the header says is checked before memory is taken. On their way from and to a
GPU tensors are in the host's memory one at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

LENGTH = struct.Struct("<Q")
MOST_DIMENSIONS = 64  # of a tensor, as torch has it
_TOGETHER = 64 << 10  # shorter pieces go to the kernel in one call

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Reader(Protocol):
    """Fills a buffer with what comes next."""

    def __call__(self, buffer: memoryview, /) -> None: ...


def size(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, int]:
    """(length field and header, bytes of the whole). Raises TypeError for a dtype that has no name in the format."""
    entries, end = {}, 0
    for name, x in tensors.items():
        if x.dtype not in _NAMES:
            raise TypeError(f"{x.dtype} cannot cross the process border")
        start, end = end, end + x.nbytes
        entries[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    return LENGTH.pack(len(header)) + header, LENGTH.size + len(header) + end


def pieces(head: bytes, tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The whole in order, in few pieces; large tensors that are contiguous and on the CPU are not copied."""
    gathered = bytearray(head)
    for x in tensors.values():
        if not x.nbytes:
            continue
        data = _bytes(x.cpu().contiguous())
        if len(data) < _TOGETHER:
            gathered += data
            continue
        if gathered:
            yield bytes(gathered)
            gathered.clear()
        yield data
        del data
    if gathered:
        yield bytes(gathered)


def receive(read: Reader, length: int, most_header: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Tensors of a whole of ``length`` bytes, each in memory of its own on ``device``. Raises ValueError when it is not of this format."""
    head = bytearray(LENGTH.size)
    if length < len(head):
        raise ValueError("no room for a header")
    read(memoryview(head))
    (n,) = LENGTH.unpack(head)
    if n > min(most_header, length - LENGTH.size):
        raise ValueError(f"a header of {n} bytes")
    header = bytearray(n)
    read(memoryview(header))
    entries = json.loads(header.decode())
    if not isinstance(entries, dict):
        raise ValueError("the header is no object")
    planned, end = [], 0
    for name, entry in entries.items():
        dtype, shape, offsets = _entry(entry)
        start, end = end, end + math.prod(shape) * dtype.itemsize
        if offsets != [start, end]:
            raise ValueError("tensors that do not follow each other")
        planned.append((name, dtype, shape))
    if LENGTH.size + n + end != length:
        raise ValueError("the header does not describe what follows")
    found = {}
    for name, dtype, shape in planned:
        x = torch.empty(shape, dtype=dtype)
        if x.nbytes:
            read(_bytes(x))
        found[name] = x.to(device)
        del x
    return found


def _entry(entry: Any) -> tuple[torch.dtype, list[int], list[int]]:
    dtype, shape, offsets = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
    ):
        raise ValueError("a shape that is none")
    return dtype, shape, offsets


def _bytes(x: torch.Tensor) -> memoryview:
    data: Any = (
        x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()
    )  # contiguous says nothing of the stride of one element
    return memoryview(data)
