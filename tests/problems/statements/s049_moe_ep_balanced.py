"""The layer without parallelism: every token of every rank through each of its experts, one dense pass per expert."""

import torch
import torch.nn.functional as F


def statement(ranks):
    return groups_statement(ranks, group_size=len(ranks))


def groups_statement(ranks, group_size):
    """Ranks in contiguous groups of ``group_size``; expert x of E lives on rank x // (E / group_size) of each group."""
    outputs = []
    for rank, (hidden, gate_weight, gate_bias, _, _, _, num_experts, top_k, _) in enumerate(ranks):
        first = rank // group_size * group_size
        logits = hidden @ gate_weight.T + (0 if gate_bias is None else gate_bias)
        p = logits.exp() / logits.exp().sum(-1, keepdim=True)
        threshold = p.sort(-1, descending=True).values[:, top_k - 1 : top_k]
        output = torch.zeros_like(hidden)
        for x in range(num_experts):
            gate, up, down = ranks[first + x // (num_experts // group_size)][3:6]
            y = (F.silu(hidden @ gate.weight.T + gate.bias) * (hidden @ up.weight.T + up.bias)) @ down.weight.T + down.bias
            output += torch.where(p[:, x : x + 1] >= threshold, p[:, x : x + 1], 0) * y
        outputs.append(output)
    return outputs
