"""Gather object masks from all ranks and suppress overlapping objects.

Multi-GPU video segmentation (SAM 3) tracks a few objects per rank; after each frame every rank needs all masks, and of
two objects that cover the same pixels the one that was occluded later gives way. Each rank holds the mask logits and
scores of its own objects (the counts of all ranks are known) and, for all objects, the frame in which each was last
occluded. Every rank returns all masks with the suppressed ones blanked out, all scores, and the suppression flags.
"""

import torch
import torch.distributed as dist

SUPPRESSED_LOGIT = -10.0


def gather_unequal(x: torch.Tensor, counts: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenate the first counts[r] rows of every rank r, in rank order."""
    longest = max(counts)
    padded = torch.zeros(longest, *x.shape[1:], dtype=x.dtype, device=x.device)
    padded[: x.shape[0]] = x
    gathered = torch.empty(len(counts) * longest, *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(gathered, padded, group=group)
    return torch.cat([gathered[r * longest : r * longest + count] for r, count in enumerate(counts)])


def suppressed_objects(masks: torch.Tensor, last_occluded: torch.Tensor, threshold: float, reverse: bool) -> torch.Tensor:
    """(n,) bool: which objects give way to another one that overlaps them. masks: (n, H, W) logits."""
    num_objects = masks.shape[0]
    if num_objects <= 1:
        return torch.zeros(num_objects, dtype=torch.bool, device=masks.device)
    pixels = (masks > 0).to(masks.dtype).flatten(1)
    intersection = pixels @ pixels.t()
    area = pixels.sum(dim=1)
    union = area[:, None] + area[None, :] - intersection
    iou = intersection / union.clamp(min=1)
    overlapping = (iou >= threshold).triu(diagonal=1)  # each pair (i, j) once, i < j

    occluded_i, occluded_j = last_occluded[:, None], last_occluded[None, :]
    i_later = occluded_i < occluded_j if reverse else occluded_i > occluded_j
    j_later = occluded_j < occluded_i if reverse else occluded_j > occluded_i
    suppress_i = overlapping & i_later & (occluded_j > -1)
    suppress_j = overlapping & j_later & (occluded_i > -1)
    return suppress_i.any(dim=1) | suppress_j.any(dim=0)


def solution(
    low_res_masks_local: torch.Tensor,
    obj_scores_local: torch.Tensor,
    num_obj_per_gpu: list[int],
    last_occluded: torch.Tensor,
    iou_threshold: float = 0.7,
    reverse: bool = False,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (masks, scores, suppressed) of all n objects, in rank order, the same on all ranks.

    low_res_masks_local: (n_r, H, W) logits, a pixel belongs to the object where positive. obj_scores_local: (n_r, ...).
    num_obj_per_gpu: n_r of all ranks (0 allowed). last_occluded: (n,) int64, frame of the last occlusion, -1 for never.
    Of two objects with mask IoU >= iou_threshold the one occluded later is suppressed (earlier, with reverse), if the other
    one was ever occluded; equal frames suppress neither.
    Returns (n, H, W) and (n, ...) in float32, and (n,) bool. Raises ValueError if a local count disagrees.
    """
    own_count = num_obj_per_gpu[dist.get_rank(group)]
    if low_res_masks_local.shape[0] != own_count or obj_scores_local.shape[0] != own_count:
        raise ValueError(
            f"expected {own_count} objects, got {low_res_masks_local.shape[0]} masks and {obj_scores_local.shape[0]} scores"
        )
    wide = torch.promote_types(low_res_masks_local.dtype, torch.float32)
    masks = gather_unequal(low_res_masks_local.to(wide), num_obj_per_gpu, group)
    scores = gather_unequal(obj_scores_local.to(wide), num_obj_per_gpu, group)

    suppressed = suppressed_objects(masks, last_occluded.to(masks.device), iou_threshold, reverse)
    masks[suppressed] = SUPPRESSED_LOGIT
    return masks, scores, suppressed
