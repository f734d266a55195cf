"""Inverse 2-D FFT to a real image from a half spectrum that is split over the ranks by frequency rows.

Each rank holds 1/W of the rows (dim[0]) of the half spectrum, all kept columns (dim[1]). The missing columns are completed by
Hermitian symmetry, whose partner rows live on other ranks; then the rows are transformed back, the ranks transpose with one
all-to-all so that each holds all rows of 1/W of the columns, and the columns are transformed back. This is the inverse
spectral layer of model-parallel weather models (AFNO/FNO in NVIDIA PhysicsNeMo).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(
    x: torch.Tensor,
    s: tuple[int, int] | None,
    dim: tuple[int, int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return this rank's columns of the real image: contiguous, dim[0] of n0 rows, dim[1] of n1 / W columns.

    x: complex, row block of the half spectrum: n0 / W rows along dim[0], m <= n1 columns along dim[1], which must be the last
    axis. s: (n0, n1), the global size of the image; None, on one rank only, takes it from x as (rows, 2 * (m - 1)). norm: as in
    torch.fft. W must divide n0 and n1. group: None is the world. Raises ValueError if s does not fit x.
    """
    group = dist.group.WORLD if group is None else group
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    kept = x.shape[dim[1]]
    n0, n1 = (x.shape[dim[0]], 2 * (kept - 1)) if s is None else s
    if n0 != world * x.shape[dim[0]]:
        raise ValueError(f"s[0] = {n0}, but {world} ranks hold {x.shape[dim[0]]} rows each; s = None is for one rank only")

    # Mirror, local part: column c >= m is the conjugate of column n1 - c (its rows are still in the wrong order).
    local = F.pad(x, (0, n1 - kept))
    local[..., kept:] = local[..., 1 : n1 - kept + 1].flip(-1).conj()

    # Mirror, global part: in those columns the rows 1 .. n0 - 1 come in reverse order, from other ranks.
    blocks = torch.empty(world * local.numel(), dtype=local.dtype, device=local.device)
    dist.all_gather_into_tensor(blocks, local.flatten(), group=group)
    full = torch.cat(blocks.view(world, *local.shape).unbind(0), dim=dim[0])
    order = (-torch.arange(n0, device=x.device)) % n0
    full[..., kept:] = full[..., kept:].index_select(dim[0], order)
    rows = full.narrow(dim[0], rank * (n0 // world), n0 // world)

    # Inverse transform of the rows this rank owns.
    rows = torch.fft.ifft(rows, n=n1, dim=dim[1], norm=norm)

    # Transpose: block j of the columns goes to rank j; the rows received are joined in rank order.
    send = torch.stack(rows.split(n1 // world, dim=dim[1]))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    columns = torch.cat(received.unbind(0), dim=dim[0])

    # Inverse transform of the columns; the image is real.
    return torch.fft.ifft(columns, n=n0, dim=dim[0], norm=norm).real.contiguous()
