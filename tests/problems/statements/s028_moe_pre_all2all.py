"""For every expert in turn, the tokens of every rank that name it."""

import torch


def statement(ranks):
    W, num_experts = len(ranks), ranks[0][2]
    nle = num_experts // W
    tokens = [inputs[0].flatten(0, -2) for inputs in ranks]
    named = [inputs[1].amax(1) > 0 for inputs in ranks]  # (E, T) of every rank
    outputs = []
    for r in range(W):
        grouped = [tokens[q][named[q][e]] for e in range(r * nle, (r + 1) * nle) for q in range(W)]
        sent = torch.cat([named[r][e].nonzero()[:, 0] for e in range(num_experts)])
        routing_map = torch.stack([slot for slot in ranks[r][1].unbind(1)]).sum(0)
        outputs.append((torch.cat(grouped), routing_map, sent, tokens[r].shape))
    return outputs
