"""All-reduce in two shots: each rank sums one part of all buffers in C++, then copies the parts that its peers summed."""

import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

from pkb import symm

CPP_SOURCE = r"""
#include <ATen/OpMathType.h>
#include <torch/extension.h>
#include <vector>

// out[i] = sum over ranks of input[rank][i], accumulated in float (double for double) and rounded once.
template <typename T, typename Accumulator>
static void sum(const std::vector<const T*>& inputs, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    Accumulator total = 0;
    for (const T* input : inputs) total += static_cast<Accumulator>(input[i]);
    out[i] = static_cast<T>(total);
  }
}

void sum_parts(const std::vector<int64_t>& addresses, torch::Tensor out, int64_t start) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "sum_parts", [&] {
    std::vector<const scalar_t*> inputs;
    for (int64_t a : addresses) inputs.push_back(reinterpret_cast<const scalar_t*>(a) + start);
    sum<scalar_t, at::opmath_type<scalar_t>>(inputs, out.data_ptr<scalar_t>(), out.numel());
  });
}
"""

_state = {"bytes": 0, "call": 0}


def _slot(nbytes):
    """This call's (extension, input handle, part handle); two pairs of buffers take turns.

    A buffer is written again two calls later. Before that, every rank has passed the barriers of the call between, which a
    peer reaches only after it has finished reading.
    """
    if "extension" not in _state:
        _state["extension"] = load_inline(name="sum_parts", cpp_sources=CPP_SOURCE, functions=["sum_parts"])
    if nbytes > _state["bytes"]:  # sizes are equal on all ranks, so all ranks take this branch together
        _state["bytes"] = max(nbytes, 2 * _state["bytes"])
        _state["buffers"] = [symm.empty(_state["bytes"], dtype=torch.uint8) for _ in range(4)]
        _state["handles"] = [symm.rendezvous(b, dist.group.WORLD) for b in _state["buffers"]]
    _state["call"] += 1
    first = 2 * (_state["call"] % 2)
    return _state["extension"], _state["handles"][first], _state["handles"][first + 1]


def solution(tensor: torch.Tensor) -> torch.Tensor:
    extension, inputs, parts = _slot(tensor.numel() * tensor.element_size())
    rank, world_size, count = inputs.rank, inputs.world_size, tensor.numel()
    bounds = [count * r // world_size for r in range(world_size + 1)]  # parts differ by at most one element

    inputs.get_buffer(rank, tensor.shape, tensor.dtype).copy_(tensor)
    inputs.barrier()
    start, size = bounds[rank], bounds[rank + 1] - bounds[rank]
    extension.sum_parts(inputs.buffer_ptrs, parts.get_buffer(rank, (size,), tensor.dtype), start)
    parts.barrier()
    total = torch.empty(count, dtype=tensor.dtype)
    for peer in range(world_size):
        part = total[bounds[peer] : bounds[peer + 1]]
        part.copy_(parts.get_buffer(peer, part.shape, tensor.dtype))
    return total.view(tensor.shape)
