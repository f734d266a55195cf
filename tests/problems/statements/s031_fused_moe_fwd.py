"""Every rank's MLP on every token, then each token's sum over its k experts."""

import torch
import torch.nn.functional as F


def statement(ranks):
    world_size = len(ranks)
    outputs = []
    for inputs in ranks:
        tokens, gate_weight, gate_bias, num_experts, top_k = inputs[0].flatten(0, -2), *inputs[1:3], *inputs[6:8]
        logits = tokens @ gate_weight.T + (0 if gate_bias is None else gate_bias)
        weights, experts = logits.softmax(-1).topk(top_k)
        per_rank = torch.stack([_mlp(tokens, *peer[3:6]) for peer in ranks])  # (W, T, H)
        owner = experts // (num_experts // world_size)
        chosen = per_rank[owner, torch.arange(len(tokens)).unsqueeze(1)]  # (T, k, H)
        outputs.append((weights.unsqueeze(-1) * chosen).sum(1))
    return outputs


def _mlp(x, gate, up, down):
    inner = F.silu(x @ gate.weight.T + gate.bias) * (x @ up.weight.T + up.bias)
    return inner @ down.weight.T + down.bias
