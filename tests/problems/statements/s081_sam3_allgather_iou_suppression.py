"""All masks on one process, pair by pair with sets of pixels."""

import torch


def statement(ranks):
    masks = torch.cat([r[0] for r in ranks]).float()
    scores = torch.cat([r[1] for r in ranks]).float()
    _, _, _, last, threshold, reverse = ranks[0]
    pixels = [set(m.flatten().gt(0).nonzero().flatten().tolist()) for m in masks]
    suppressed = torch.zeros(len(pixels), dtype=torch.bool)
    for a in range(len(pixels)):
        for b in range(len(pixels)):
            if a == b or len(pixels[a] & pixels[b]) < threshold * max(1, len(pixels[a] | pixels[b])):
                continue
            later = last[a] < last[b] if reverse else last[a] > last[b]
            if later and last[b] > -1:
                suppressed[a] = True
    masks = torch.where(suppressed[:, None, None], -10.0, masks)
    return [(masks, scores, suppressed) for _ in ranks]
