"""Variable all-to-all: the split sizes are exchanged with one small integer collective, the rows are read from the peers.

The whole matrix of row counts stays on the device for the kernel; the host reads it once to see whether the staging memory must
grow, which depends on the fullest rank and is therefore decided alike everywhere.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

// rows (world, world): [source][destination]; blockIdx.y is the source
template <typename Unit>
__global__ void pull_rows(const int64_t* __restrict__ peers, const int64_t* __restrict__ rows, int world, int rank,
                          int64_t units_per_row, Unit* __restrict__ out) {
  const int source = blockIdx.y;
  int64_t from = 0, to = 0;
  for (int d = 0; d < rank; ++d) from += rows[source * world + d];
  for (int s = 0; s < source; ++s) to += rows[s * world + rank];
  const int64_t units = rows[source * world + rank] * units_per_row;
  const Unit* theirs = reinterpret_cast<const Unit*>(peers[source]) + from * units_per_row;
  Unit* ours = out + to * units_per_row;
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < units; i += stride) ours[i] = theirs[i];
}

template <typename Unit>
void launch(const torch::Tensor& peers, const torch::Tensor& rows, int64_t rank, int64_t row_bytes, torch::Tensor& out) {
  const unsigned world = (unsigned)peers.numel();
  const unsigned blocks = std::max(16u, 528u / world);
  pull_rows<Unit><<<dim3(blocks, world), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      peers.data_ptr<int64_t>(), rows.data_ptr<int64_t>(), (int)world, (int)rank, row_bytes / (int64_t)sizeof(Unit),
      reinterpret_cast<Unit*>(out.data_ptr()));
}

void pull(torch::Tensor peers, torch::Tensor rows, int64_t rank, torch::Tensor out) {
  if (out.numel() == 0) return;
  const int64_t row_bytes = (int64_t)out.nbytes() / out.size(0);
  if (row_bytes % 16 == 0) launch<uint4>(peers, rows, rank, row_bytes, out);
  else if (row_bytes % 4 == 0) launch<uint32_t>(peers, rows, rank, row_bytes, out);
  else if (row_bytes % 2 == 0) launch<uint16_t>(peers, rows, rank, row_bytes, out);
  else launch<uint8_t>(peers, rows, rank, row_bytes, out);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("pull", &pull); }
"""

_ext = None
_staging = {}


def _staging_of(group, nbytes, device):
    """Staging memory of a group; nbytes is the same on all of its ranks."""
    found = _staging.get(group.group_name)
    if found is None or found[0].numel() < nbytes:
        buffer = symm_mem.empty(max(1 << 20, 1 << (nbytes - 1).bit_length()), dtype=torch.uint8, device=device)
        handle = symm_mem.rendezvous(buffer, group)
        peers = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device)
        found = _staging[group.group_name] = (buffer, handle, peers)
    return found


def solution(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("moe_all2all_pull", SOURCE)
    group = dist.group.WORLD if group is None else group
    world_size, rank, device = dist.get_world_size(group), dist.get_rank(group), local_tensor.device
    if world_size == 1:
        return local_tensor.contiguous()

    if input_split_sizes is None:
        each = local_tensor.shape[0] // world_size
        rows = torch.full((world_size, world_size), each, dtype=torch.int64, device=device)
        largest, received = world_size * each, world_size * each
    else:
        mine = torch.tensor(input_split_sizes, dtype=torch.int64, device=device)
        rows = torch.empty(world_size * world_size, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(rows, mine, group=group)
        matrix = rows.view(world_size, world_size).tolist()
        largest, received = max(map(sum, matrix)), sum(row[rank] for row in matrix)

    row_bytes = local_tensor.element_size()
    for extent in local_tensor.shape[1:]:
        row_bytes *= extent
    buffer, handle, peers = _staging_of(group, max(1, largest * row_bytes), device)
    nbytes = local_tensor.numel() * local_tensor.element_size()
    buffer[:nbytes].view(local_tensor.dtype).view(local_tensor.shape).copy_(local_tensor)
    handle.barrier(channel=0)
    out = local_tensor.new_empty(received, *local_tensor.shape[1:])
    _ext.pull(peers, rows, rank, out)
    handle.barrier(channel=1)
    return out
