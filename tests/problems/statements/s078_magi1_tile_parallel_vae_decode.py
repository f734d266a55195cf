"""All tiles on one process, decoded and blended slice by slice."""

import math

import torch
import torch.nn.functional as F


def statement(ranks):
    _, lt, lh, lw, fs, ft, su, tu, sr, first = ranks[0]
    tile, overlap, factor = (lt + first, lh, lw), (ft, fs, fs), (tu, su * sr, su * sr)
    stride = [int(n * (1 - f)) for n, f in zip(tile, overlap, strict=True)]
    width = [int(n * u * f) for n, u, f in zip(tile, factor, overlap, strict=True)]
    kept = [n * u - w for n, u, w in zip(tile, factor, width, strict=True)]
    extents = ranks[0][0].shape[2:]
    starts = [range(0, n, s) for n, s in zip(extents, stride, strict=True)]
    boxes = [(t, h, w) for t in starts[0] for h in starts[1] for w in starts[2]]

    def volume(box):
        return math.prod(min(n, e - o) for n, e, o in zip(tile, extents, box, strict=True))

    raw = {}
    for place, box in enumerate(sorted(boxes, key=volume, reverse=True)):  # sorted is stable: ties by index
        t, h, w = box
        z = ranks[place % len(ranks)][0][:, :, t : t + tile[0], h : h + tile[1], w : w + tile[2]]
        pixels = F.interpolate(z.float(), scale_factor=tuple(map(float, factor)), mode="trilinear", align_corners=False)
        raw[box] = torch.stack([pixels[:, i % z.shape[1]] for i in range(3)], dim=1).to(z.dtype)

    done = {}
    for box in boxes:
        out = raw[box].clone()
        for axis in range(3):
            neighbour = list(box)
            neighbour[axis] -= stride[axis]
            if neighbour[axis] < 0:
                continue
            old, new = raw[tuple(neighbour)].movedim(2 + axis, 0), out.movedim(2 + axis, 0)
            extent = min(len(old), len(new), width[axis])
            for i in range(extent):
                new[i] = old[len(old) - extent + i] * (1 - i / extent) + new[i] * (i / extent)
        done[box] = out[:, :, : kept[0], : kept[1], : kept[2]]
    rows = {(t, h): torch.cat([done[t, h, w] for w in starts[2]], dim=4) for t in starts[0] for h in starts[1]}
    video = torch.cat([torch.cat([rows[t, h] for h in starts[1]], dim=3) for t in starts[0]], dim=2)
    return [video for _ in ranks]
