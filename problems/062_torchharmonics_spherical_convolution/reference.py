"""Distributed discrete-continuous (DISCO) convolution on the sphere.

The latitudes of the input are split over the polar group and the longitudes over the azimuth group. The filter of every output
latitude is a sparse set of weights over input points, given for longitude zero and shifted along the longitudes. The ranks of
an azimuth row exchange longitudes for channels, so that each holds all longitudes of some channels; each contracts its
latitudes with its part of the filter; the polar group adds the parts up and splits the output latitudes; the azimuth row
exchanges back; and the channels are mixed. This is the convolution of spherical weather models under spatial model
parallelism (torch-harmonics).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    x: torch.Tensor,
    psi: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    nlon_out: int,
    nlon_in: int,
    azimuth_group: dist.ProcessGroup | None = None,
    polar_group: dist.ProcessGroup | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return this rank's tile of the output, (B, O, h_out, w_out).

    x: (B, C, h_in, w_in), this rank's tile of latitudes and longitudes. psi: sparse COO (K, nlat_out, h_in * nlon_in), the filter
    of all output latitudes over the local input latitudes and all longitudes; column = local latitude * nlon_in + longitude.
    weight: (O, C / groups, K). groups: channel groups. nlon_out, nlon_in: global numbers of longitudes; nlon_in is a multiple
    of nlon_out. azimuth_group, polar_group: None is the world. bias: (O,) or None.
    Channels, longitudes and output latitudes are split over their group as ``split_sizes`` says.
    """
    azimuth_group = dist.group.WORLD if azimuth_group is None else azimuth_group
    polar_group = dist.group.WORLD if polar_group is None else polar_group
    num_azimuth, num_polar = dist.get_world_size(azimuth_group), dist.get_world_size(polar_group)
    num_channels, nlat_out = x.shape[1], psi.shape[1]

    # All longitudes of some channels instead of some longitudes of all channels.
    if num_azimuth > 1:
        x = exchange(x, split_dim=1, join_dim=3, join_size=nlon_in, group=azimuth_group)

    # Local contraction: (B, Ca, K, nlat_out, nlon_out), partial over the latitudes of the other polar ranks.
    y = contract(x, psi, nlon_out)

    # Add up over latitudes and keep this rank's output latitudes.
    if num_polar > 1:
        total = y.to(torch.promote_types(y.dtype, torch.float32)).contiguous()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=polar_group)
        y = total.to(y.dtype).split(split_sizes(nlat_out, num_polar), dim=3)[dist.get_rank(polar_group)]

    # Back to all channels of some longitudes.
    if num_azimuth > 1:
        y = exchange(y, split_dim=4, join_dim=1, join_size=num_channels, group=azimuth_group)

    # Mix channels and basis functions within each group.
    batch, _, basis, h_out, w_out = y.shape
    y = y.reshape(batch, groups, num_channels // groups, basis, h_out, w_out)
    weight = weight.reshape(groups, weight.shape[0] // groups, num_channels // groups, basis)
    output = torch.einsum("bgckhw,gock->bgohw", y, weight).flatten(1, 2)
    return output if bias is None else output + bias.view(1, -1, 1, 1)


def contract(x: torch.Tensor, psi: torch.Tensor, nlon_out: int) -> torch.Tensor:
    """y[b, c, k, t, l] = sum over h, w of psi[k, t, h * nlon_in + w] * x[b, c, h, (w + l * step) % nlon_in].

    x: (B, Ca, h_in, nlon_in). psi: sparse (K, nlat_out, h_in * nlon_in). step = nlon_in / nlon_out. One sparse product per
    output longitude, with x turned to it.
    """
    batch, channels, h_in, nlon_in = x.shape
    basis, nlat_out, _ = psi.shape
    psi = psi.coalesce()
    k, t, column = psi.indices()
    flat = torch.stack([k * nlat_out + t, column])
    rows = torch.sparse_coo_tensor(flat, psi.values(), (basis * nlat_out, h_in * nlon_in), check_invariants=False)
    y = x.new_empty(nlon_out, basis * nlat_out, batch * channels)
    for l in range(nlon_out):
        turned = torch.roll(x, -l * (nlon_in // nlon_out), dims=3)
        y[l] = torch.sparse.mm(rows, turned.reshape(batch * channels, h_in * nlon_in).t())
    return y.view(nlon_out, basis, nlat_out, batch, channels).permute(3, 4, 1, 2, 0)


def exchange(x: torch.Tensor, split_dim: int, join_dim: int, join_size: int, group: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all: cut x along split_dim, one piece per rank; join what arrives along join_dim, of global size join_size."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    pieces = [p.contiguous() for p in x.split(split_sizes(x.shape[split_dim], size), dim=split_dim)]
    shapes = []
    for length in split_sizes(join_size, size):
        shape = list(pieces[rank].shape)
        shape[join_dim] = length
        shapes.append(torch.Size(shape))
    send = torch.cat([p.flatten() for p in pieces])
    received = send.new_empty(sum(s.numel() for s in shapes))
    dist.all_to_all_single(received, send, [s.numel() for s in shapes], [p.numel() for p in pieces], group=group)
    blocks = received.split([s.numel() for s in shapes])
    return torch.cat([b.view(s) for b, s in zip(blocks, shapes, strict=True)], dim=join_dim)


def split_sizes(size: int, parts: int) -> list[int]:
    """Lengths of ``parts`` pieces: all ceil(size / parts) but the last; all floor(...) but the last if that left it empty."""
    if parts == 1:
        return [size]
    chunk = -(-size // parts)
    last = max(0, size - chunk * (parts - 1))
    if last == 0:
        chunk = size // parts
        last = size - chunk * (parts - 1)
    return [chunk] * (parts - 1) + [last]
