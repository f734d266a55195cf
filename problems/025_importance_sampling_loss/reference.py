"""Policy-gradient loss with importance ratios, from the hidden states of a language model and its output head.

Reinforcement learning of language models trains on tokens that an older policy sampled; each token's advantage is weighted
by the ratio of its probability under the new and the old policy. Under data parallelism every rank holds the hidden
states, labels, old log-probabilities and advantages of its own tokens and a copy of the output head; loss and metrics are
normalised by the number of valid tokens on all ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

LOG_RATIO_LIMIT = 20.0


def global_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum of a scalar over all ranks, in a new tensor."""
    total = x.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


def solution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (loss, None, per-token log-probabilities, per-token loss, metrics).

    hidden_states: (..., H). weight: (V, H), same dtype. labels: (...) int64, a token or ``ignore_index`` (left out everywhere).
    old_logprobs, advantages: (...), possibly of a wider dtype, which what is computed from them then takes. All contiguous.
    loss: 0-d fp32. Log-probabilities: shape of labels, dtype of hidden_states. Per-token loss: shape of labels. metrics: (5,)
    fp32, over the valid tokens of all ranks: mean, minimum and maximum of the ratio, mean of the k3 estimate of the KL
    divergence, mean cross entropy. loss and metrics are equal on all ranks.
    """
    # cross entropy of the labels under the new policy, 0 where ignored
    logits = hidden_states.view(-1, hidden_states.shape[-1]) @ weight.t()  # (T, V)
    targets = labels.view(-1)
    cross_entropy = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")  # (T,)
    new_logprobs = -cross_entropy.detach()

    # number of valid tokens on all ranks
    valid = targets != ignore_index
    num_tokens = global_sum(valid.sum().to(torch.float32)).clamp(min=1.0)

    # importance ratio of the new to the old policy
    log_ratio = (new_logprobs - old_logprobs.view(-1)).masked_fill(~valid, 0.0)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()

    # policy-gradient loss; the surrogate adds nothing to the value, only the gradient through the cross entropy
    weighted = (ratio * advantages.view(-1)).masked_fill(~valid, 0.0)
    token_loss = -weighted
    policy_loss = global_sum(token_loss.sum()) / num_tokens
    surrogate = (weighted * cross_entropy).sum() / num_tokens
    loss = (policy_loss + surrogate) - surrogate

    # metrics
    ratio_mean = global_sum(ratio.masked_fill(~valid, 0.0).sum()) / num_tokens
    ratio_min = ratio.masked_fill(~valid, float("inf")).min()
    dist.all_reduce(ratio_min, op=dist.ReduceOp.MIN)
    ratio_max = ratio.masked_fill(~valid, float("-inf")).max()
    dist.all_reduce(ratio_max, op=dist.ReduceOp.MAX)
    k3 = (ratio - log_ratio) - 1.0
    k3_mean = global_sum(k3.masked_fill(~valid, 0.0).sum()) / num_tokens
    entropy_mean = global_sum(cross_entropy.masked_fill(~valid, 0.0).sum()) / num_tokens
    metrics = torch.stack([m.to(loss.dtype) for m in (ratio_mean, ratio_min, ratio_max, k3_mean, entropy_mean)])

    return loss, None, new_logprobs.view(labels.shape), token_loss.view(labels.shape), metrics
