"""Tile-parallel decoding of a video latent: decode overlapping tiles, blend the overlaps, stitch.

Video autoencoders (MAGI-1) decode latents too large for one pass in tiles that overlap in time, height and width, and
hide the seams by blending each tile linearly into the tiles before it. Tiles are dealt out to the ranks; every rank
holds a latent of the same shape and decodes its own tiles from it. (Ranks' latents may differ: a tile is always taken
from its owner's.) The decoder itself is a stand-in: trilinear interpolation and the first three channels. The ranks
gather all decoded tiles, blend their own ones with the neighbours, gather the blended tiles, and stitch them, so that
every rank returns the whole video.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def decode(tile: torch.Tensor, temporal: int, spatial: int) -> torch.Tensor:
    """(B, C, t, h, w) -> (B, 3, t*temporal, h*spatial, w*spatial) in the dtype of the tile; computed in float32 at least."""
    wide = torch.promote_types(tile.dtype, torch.float32)
    factors = (float(temporal), float(spatial), float(spatial))
    pixels = F.interpolate(tile.to(wide), scale_factor=factors, mode="trilinear", align_corners=False)
    channels = [i % pixels.shape[1] for i in range(3)]
    return pixels[:, channels].to(tile.dtype)


def blend(before: torch.Tensor, tile: torch.Tensor, dim: int, width: int) -> torch.Tensor:
    """Blend the first slices of ``tile`` along ``dim`` with the last ones of ``before``; every product is rounded."""
    extent = min(before.shape[dim], tile.shape[dim], width)
    if extent == 0:
        return tile
    wide = torch.promote_types(tile.dtype, torch.float32)
    rho = torch.arange(extent, dtype=torch.float64, device=tile.device) / extent
    rho = rho.view([-1 if axis == dim else 1 for axis in range(tile.dim())])
    old = before.narrow(dim, before.shape[dim] - extent, extent)
    new = tile.narrow(dim, 0, extent)
    faded_out = (old.to(wide) * (1 - rho).to(wide)).to(tile.dtype)
    faded_in = (new.to(wide) * rho.to(wide)).to(tile.dtype)
    rest = tile.narrow(dim, extent, tile.shape[dim] - extent)
    return torch.cat([faded_out + faded_in, rest], dim=dim)


def gather_tiles(
    own: dict[int, torch.Tensor],
    owned_by: list[list[int]],
    shapes: list[tuple[int, ...]],
    like: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> list[torch.Tensor]:
    """All tiles in index order on every rank.

    own: this rank's tiles by index. owned_by: tile indices by rank. shapes: shape by index.
    """
    if not dist.is_initialized():
        return [own[i] for i in range(len(shapes))]
    sizes = [sum(math.prod(shapes[i]) for i in indices) for indices in owned_by]
    send = torch.zeros(max(sizes), dtype=like.dtype, device=like.device)  # padded to the longest rank
    if own:
        flat = torch.cat([own[i].flatten() for i in owned_by[dist.get_rank(group)]])
        send[: flat.numel()] = flat
    received = torch.empty(len(owned_by) * max(sizes), dtype=like.dtype, device=like.device)
    dist.all_gather_into_tensor(received, send, group=group)

    tiles: list[torch.Tensor] = [like] * len(shapes)
    for rank, indices in enumerate(owned_by):
        start = rank * max(sizes)
        for i in indices:
            count = math.prod(shapes[i])
            tiles[i] = received[start : start + count].view(shapes[i])
            start += count
    return tiles


def solution(
    z: torch.Tensor,
    tile_latent_min_length: int,
    tile_latent_min_height: int,
    tile_latent_min_width: int,
    spatial_tile_overlap_factor: float,
    temporal_tile_overlap_factor: float,
    spatial_upsample: int,
    temporal_upsample: int,
    sr_ratio: int = 1,
    first_frame_as_image: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the decoded video (B, 3, frames, rows, columns) in the dtype of z, the same on all ranks.

    z: (B, C, T, H, W). tile_latent_min_length, height, width: tile extents in latent cells (the length one more with
    first_frame_as_image). The overlap factors are the shares of a tile that overlap the next one. Upsampling factors are
    per axis, the spatial one times sr_ratio. Raises ValueError if the overlap leaves no stride.
    """
    initialized = dist.is_initialized()
    world_size = dist.get_world_size(group) if initialized else 1
    rank = dist.get_rank(group) if initialized else 0
    batch, _, *extents = z.shape
    overlaps = (temporal_tile_overlap_factor, spatial_tile_overlap_factor, spatial_tile_overlap_factor)
    factors = (temporal_upsample, spatial_upsample * sr_ratio, spatial_upsample * sr_ratio)
    tile_extents = (tile_latent_min_length + int(first_frame_as_image), tile_latent_min_height, tile_latent_min_width)

    # Geometry per axis (time, height, width): stride in latent cells, blend width and kept extent in pixels, tile count.
    axes = range(3)
    strides = [int(tile_extents[x] * (1 - overlaps[x])) for x in axes]
    if min(strides) <= 0:
        raise ValueError(f"tiles of {tile_extents} with overlaps {overlaps} leave no stride")
    blend_widths = [int(tile_extents[x] * factors[x] * overlaps[x]) for x in axes]
    kept = [tile_extents[x] * factors[x] - blend_widths[x] for x in axes]
    counts = [math.ceil(extents[x] / strides[x]) for x in axes]

    # Tile i lies at places[i] = (a, b, c) of the grid and starts there times the stride; border tiles are cut.
    places = [(a, b, c) for a in range(counts[0]) for b in range(counts[1]) for c in range(counts[2])]
    index_of = {place: i for i, place in enumerate(places)}
    starts = [[place[x] * strides[x] for x in axes] for place in places]
    cells = [[min(tile_extents[x], extents[x] - start[x]) for x in axes] for start in starts]
    shapes = [(batch, 3, *(cell[x] * factors[x] for x in axes)) for cell in cells]
    cropped_shapes = [(batch, 3, *(min(shape[2 + x], kept[x]) for x in axes)) for shape in shapes]

    # Largest tiles first, dealt out in turn.
    order = sorted(range(len(places)), key=lambda i: (-math.prod(shapes[i]), i))
    owned_by = [order[r::world_size] for r in range(world_size)]

    own = {}
    for i in owned_by[rank]:
        tile = z
        for x in axes:
            tile = tile.narrow(2 + x, starts[i][x], cells[i][x])
        own[i] = decode(tile, factors[0], factors[1])
    tiles = gather_tiles(own, owned_by, shapes, z, group)

    blended = {}
    for i in owned_by[rank]:
        tile = tiles[i]
        for x in axes:  # time, height, width; neighbours are always the tiles before blending
            place = list(places[i])
            place[x] -= 1
            if place[x] >= 0:
                tile = blend(tiles[index_of[tuple(place)]], tile, dim=2 + x, width=blend_widths[x])
        blended[i] = tile[:, :, : kept[0], : kept[1], : kept[2]]
    tiles = gather_tiles(blended, owned_by, cropped_shapes, z, group)

    slabs = []
    for a in range(counts[0]):
        rows = [torch.cat([tiles[index_of[a, b, c]] for c in range(counts[2])], dim=4) for b in range(counts[1])]
        slabs.append(torch.cat(rows, dim=3))
    return torch.cat(slabs, dim=2)
