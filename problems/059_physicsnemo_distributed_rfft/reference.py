"""Forward 2-D FFT of a real image that is split over the ranks along its second transformed axis.

Each rank holds all rows (dim[0]) and 1/W of the columns (dim[1]) of the image. It transforms along dim[0], the ranks transpose
with one all-to-all so that each holds all columns of 1/W of the frequency rows, and each transforms along dim[1] and keeps
the non-redundant half spectrum. This is the spectral layer of model-parallel weather models (AFNO/FNO in NVIDIA PhysicsNeMo).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    x: torch.Tensor,
    s: tuple[int | None, int | None],
    dim: tuple[int, int],
    norm: str = "ortho",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return this rank's rows of the half spectrum: complex, contiguous, dim[0] of n0 / W rows, dim[1] of n1 // 2 + 1 columns.

    x: local block, real (complex works too), full along dim[0], 1/W of the columns along dim[1]. s: (n0, n1), global lengths of
    the transforms; None is the actual length, another length pads with zeros at the end or truncates. norm: as in torch.fft.
    W must divide n0. group: None is the world.
    """
    group = dist.group.WORLD if group is None else group
    world = dist.get_world_size(group)

    # First pass, local: full complex transform of the columns.
    columns = torch.fft.fft(x, n=s[0], dim=dim[0], norm=norm)

    # Transpose: block j of the rows goes to rank j; the columns received are joined in rank order.
    send = torch.stack(columns.split(columns.shape[dim[0]] // world, dim=dim[0]))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    rows = torch.cat(received.unbind(0), dim=dim[1])

    # Second pass, local: full complex transform of the rows, of which half is redundant for a real image.
    spectrum = torch.fft.fft(rows, n=s[1], dim=dim[1], norm=norm)
    kept = spectrum.shape[dim[1]] // 2 + 1
    return spectrum.narrow(dim[1], 0, kept).contiguous()
