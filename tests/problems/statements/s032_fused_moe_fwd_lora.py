"""Every rank's MLP, LoRA products merged into its weights, on every token, then each token's sum over its k experts."""

import torch
import torch.nn.functional as F


def statement(ranks):
    world_size = len(ranks)
    outputs = []
    for inputs in ranks:
        tokens, gate_weight, gate_bias, num_experts, top_k = inputs[0].flatten(0, -2), *inputs[1:3], *inputs[12:14]
        logits = tokens @ gate_weight.T + (0 if gate_bias is None else gate_bias)
        weights, experts = logits.softmax(-1).topk(top_k)
        per_rank = torch.stack([_mlp(tokens, *peer[3:12]) for peer in ranks])  # (W, T, H)
        owner = experts // (num_experts // world_size)
        chosen = per_rank[owner, torch.arange(len(tokens)).unsqueeze(1)]  # (T, k, H)
        outputs.append((weights.unsqueeze(-1) * chosen).sum(1))
    return outputs


def _mlp(x, gate, up, down, gate_a, gate_b, up_a, up_b, down_a, down_b):
    inner = F.silu(x @ (gate.weight + gate_b @ gate_a).T + gate.bias) * (x @ (up.weight + up_b @ up_a).T + up.bias)
    return inner @ (down.weight + down_b @ down_a).T + down.bias
