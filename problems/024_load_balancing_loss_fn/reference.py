"""Auxiliary load-balancing loss of a mixture-of-experts router, averaged over the ranks.

The loss of Switch Transformer and Mixtral (as in Hugging Face Transformers and VeOmni): E times the sum over experts of
(share of tokens routed to the expert) * (mean router probability of the expert), the smallest when the load is even. Each
rank holds the router logits of its own tokens, for one layer or several, and possibly a padding mask; every rank counts
alike in the average, whatever the number of its tokens.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    gate_logits: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor],
    num_experts: int,
    top_k: int = 2,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the loss, a 0-d fp32 tensor, equal on all ranks.

    gate_logits: (T, E), or a tuple or list of L such tensors, one per layer. attention_mask: (batch, sequence) of T entries,
    1 for a token and 0 for padding (integer, floating or bool), the same for all layers; None means all tokens count.
    """
    # all layers' tokens, layer after layer
    if isinstance(gate_logits, tuple | list):
        logits = torch.cat([layer.to(gate_logits[0].device) for layer in gate_logits], dim=0)
    else:
        logits = gate_logits
    fp32 = torch.promote_types(logits.dtype, torch.float32)  # or float64 if that is given

    # routing: the top_k most probable experts of each row
    probabilities = F.softmax(logits, dim=-1)  # (R, E), rounded to the dtype of the logits
    selected = torch.topk(probabilities, top_k, dim=-1).indices  # (R, k)
    one_hot = F.one_hot(selected, num_experts).to(fp32)  # (R, k, E)

    if attention_mask is None:
        share_of_tokens = one_hot.mean(dim=0)  # (k, E)
        mean_probability = probabilities.mean(dim=0)  # (E,)
    else:
        batch, sequence = attention_mask.shape
        num_layers = logits.shape[0] // (batch * sequence)
        weight = attention_mask.reshape(-1).repeat(num_layers)  # one per row
        share_of_tokens = (one_hot * weight[:, None, None]).sum(dim=0) / weight.sum()
        mean_probability = (probabilities * weight[:, None]).sum(dim=0) / weight.sum()

    loss = num_experts * (share_of_tokens * mean_probability).sum()
    if dist.is_initialized():
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        loss = loss / dist.get_world_size()
    return loss
