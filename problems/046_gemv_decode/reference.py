"""Vocabulary-sharded language-model head for decoding: local logits, then an all-gather along the vocabulary.

The last layer of a decoding step under tensor parallelism (Megatron-LM, vLLM). With few tokens per step the product is a
matrix-vector product that is bound by reading the weight.

Each rank holds the replicated decoder output of T tokens, and the weight rows and biases of its own V / W vocabulary
entries; every rank needs all logits to sample from.
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(hidden_states: torch.Tensor, weight_shard: torch.Tensor, bias_shard: torch.Tensor) -> torch.Tensor:
    """Return the logits of all tokens over the whole vocabulary, (T, V), shards in rank order.

    hidden_states: (T, H). weight_shard: (V / W, H). bias_shard: (V / W,).
    """
    local = hidden_states @ weight_shard.T
    local = local + bias_shard

    gathered = local.new_empty(dist.get_world_size() * local.shape[0], local.shape[1])  # ranks, one below the other
    dist.all_gather_into_tensor(gathered, local)
    return torch.cat(gathered.chunk(dist.get_world_size(), dim=0), dim=1)
