"""Cross-entropy per token of logits that are split along the vocabulary.

Tensor-parallel language models (Megatron-LM) never gather the logits: each rank holds the columns [rank * v,
(rank + 1) * v) of the V = W * v classes for all tokens, and the targets of all tokens. The loss needs three numbers per
token from all ranks: the maximum (for a stable exponential), the target's logit, and the sum of exponentials. Every
rank returns the loss of every token. All steps stay in the dtype of the logits.
"""

import torch
import torch.distributed as dist


def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return log(sum exp(logits)) - logits[target] per token.

    vocab_parallel_logits: (B, S, v); overwritten with the logits minus the token's maximum over all ranks. target: (B, S)
    int64, global class ids, the same on all ranks; an id that no rank owns contributes a target logit of 0.
    Returns (B, S) in the dtype of the logits, the same on all ranks.
    """
    rank = dist.get_rank(group)
    columns = vocab_parallel_logits.shape[-1]

    maximum = vocab_parallel_logits.max(dim=-1).values
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    vocab_parallel_logits -= maximum[..., None]

    first = rank * columns
    foreign = (target < first) | (target >= first + columns)
    local_column = torch.where(foreign, 0, target - first)
    target_logit = vocab_parallel_logits.gather(-1, local_column[..., None]).squeeze(-1)
    target_logit = torch.where(foreign, 0.0, target_logit)
    dist.all_reduce(target_logit, group=group)

    sum_exp = vocab_parallel_logits.exp().sum(dim=-1)
    dist.all_reduce(sum_exp, group=group)

    return sum_exp.log() - target_logit
