"""Binary cross-entropy of all images against all texts at once; each rank gets the rows of its images."""

import torch
import torch.nn.functional as F


def statement(ranks):
    scale, bias = ranks[0][2:4]
    images, texts = (torch.cat([inputs[i] for inputs in ranks]) for i in (0, 1))
    logits = scale * (images @ texts.T) + bias
    losses = F.binary_cross_entropy_with_logits(logits, torch.eye(len(images), dtype=logits.dtype), reduction="none")
    return [block.sum() / len(block) for block in losses.chunk(len(ranks))]
