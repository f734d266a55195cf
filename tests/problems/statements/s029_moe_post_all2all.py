"""Label every expert output row with (owner of the token, token, expert), then weight and add."""

import torch


def statement(ranks):
    world_size = len(ranks)
    num_experts = ranks[0][3]
    local = num_experts // world_size
    outputs = [torch.zeros(r[9], dtype=torch.float64) for r in ranks]
    for owner, inputs in enumerate(ranks):
        row = 0
        for expert in range(owner * local, (owner + 1) * local):
            for source in range(world_size):
                weights, chosen = ranks[source][1], ranks[source][2]
                for token, slot in (chosen == expert).nonzero().tolist():
                    outputs[source][token] += weights[token, slot].double() * inputs[0][row].double()
                    row += 1
        assert row == len(inputs[0])
    return outputs
