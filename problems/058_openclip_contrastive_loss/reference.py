"""Sigmoid image-text loss (SigLIP) with text features passed between neighbours in both directions of a ring.

Each rank holds the image and text embeddings of its own b pairs. Every image is compared with every text of all ranks: the
matching text is a positive, all others are negatives. Texts travel around the ring, to the left and to the right at once, and
each rank adds up the loss of its own images; nothing is reduced across ranks. This is the loss of contrastive image-text
training at large batch (OpenCLIP, SigLIP).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the loss of this rank's images against the texts of all ranks: 0-dim, in the dtype of image_features.

    image_features, text_features: (b, D), row i of one matches row i of the other; the same b on all ranks. logit_scale,
    logit_bias: logits are logit_scale * (image . text) + logit_bias. group: the ring; None is the world.
    """
    group = dist.group.WORLD if group is None else group
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    right = dist.get_global_rank(group, (rank + 1) % size)
    left = dist.get_global_rank(group, (rank - 1) % size)

    # Own texts: positives on the diagonal.
    loss = block_loss(image_features, text_features, logit_scale, logit_bias, own=True)

    # Each round both neighbours pass on what they received in the round before.
    to_right = to_left = text_features.contiguous()
    rounds, remainder = divmod(size - 1, 2)
    for _ in range(rounds):
        from_right, from_left = torch.empty_like(to_left), torch.empty_like(to_right)
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, to_right, right, group),
                dist.P2POp(dist.isend, to_left, left, group),
                dist.P2POp(dist.irecv, from_right, right, group),
                dist.P2POp(dist.irecv, from_left, left, group),
            ]
        )
        for request in requests:
            request.wait()
        loss = loss + block_loss(image_features, from_right, logit_scale, logit_bias, own=False)
        loss = loss + block_loss(image_features, from_left, logit_scale, logit_bias, own=False)
        to_left, to_right = from_right, from_left

    # With an even number of ranks the opposite rank's texts are left; they come from one side only.
    if remainder:
        from_left = torch.empty_like(to_right)
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, to_right, right, group), dist.P2POp(dist.irecv, from_left, left, group)]
        )
        for request in requests:
            request.wait()
        loss = loss + block_loss(image_features, from_left, logit_scale, logit_bias, own=False)
    return loss


def block_loss(images: torch.Tensor, texts: torch.Tensor, logit_scale: float, logit_bias: float, own: bool) -> torch.Tensor:
    """Loss of all pairs of images and texts, divided by the number of images; every step in the dtype of the features."""
    logits = (logit_scale * images) @ texts.t() + logit_bias
    labels = -torch.ones_like(logits)
    if own:
        labels.fill_diagonal_(1.0)
    return -F.logsigmoid(labels * logits).sum() / images.shape[0]
