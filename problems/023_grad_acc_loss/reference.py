"""Token-weighted loss normalisation across ranks, with its hand-written gradient.

Under data parallelism with gradient accumulation, micro-batches hold different numbers of valid tokens, so the mean over
all tokens is not the mean of the ranks' means: each rank's mean loss is weighted by its token count, the products are
summed over the ranks and divided by the global count (VeOmni's training loop). Each rank holds its mean loss, its own
count, the global count, and the upstream gradients of both outputs; everything is a scalar.
"""

import torch
import torch.distributed as dist


def solution(
    loss: torch.Tensor,
    local_valid_tokens: torch.Tensor,
    global_valid_tokens: torch.Tensor,
    grad_normalized_loss: torch.Tensor,
    grad_loss_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (normalized_loss, loss_sum, grad_loss), 0-d tensors in the dtype of ``loss``.

    loss: 0-d, mean loss of this rank's valid tokens. local_valid_tokens, global_valid_tokens: 0-d int64 counts.
    grad_normalized_loss, grad_loss_sum: 0-d upstream gradients of the first two outputs (the second may be None).
    The first two outputs are equal on all ranks; grad_loss is the gradient with respect to this rank's own loss.
    """
    # forward: a rank without valid tokens may bring NaN or infinity, which must not spread
    if local_valid_tokens.item() == 0:
        loss = torch.nan_to_num(loss)
    loss_sum = loss * local_valid_tokens
    dist.all_reduce(loss_sum, op=dist.ReduceOp.SUM)
    normalized_loss = loss_sum / global_valid_tokens

    # backward: purely local
    grad_loss = grad_normalized_loss * local_valid_tokens / global_valid_tokens
    if grad_loss_sum is not None:
        grad_loss = grad_loss + grad_loss_sum * local_valid_tokens
    return normalized_loss, loss_sum, grad_loss
