"""The unsharded layer: all positions of the sequence, one head group after the other, outputs added."""

import torch

from tests.problems.statements.s054_ring_attention import attention, rings


def statement(ranks):
    hidden_of, partial = {}, {}
    for ring in rings([inputs[7] for inputs in ranks]):
        hidden = torch.cat([ranks[r][0] for r in ring], dim=1)
        y = layer(hidden, *ranks[ring[0]][1:3], ranks[ring[0]][3] // (len(ranks) // len(ring)), *ranks[ring[0]][4:6])
        for r, piece in zip(ring, y.chunk(len(ring), dim=1), strict=True):
            partial[r], hidden_of[r] = piece, ranks[r][0]
    outputs = []
    for r, inputs in enumerate(ranks):
        peers = range(len(ranks)) if inputs[6] is None else inputs[6].ranks
        assert all(torch.equal(hidden_of[p], hidden_of[r]) for p in peers), "TP peers hold the same positions"
        outputs.append(sum(partial[p] for p in peers))
    return outputs


def layer(hidden, w_qkv, w_o, heads, scale, causal):
    """Projection, attention over all positions, projection; ``heads`` are those that the weights hold."""
    batch, length, _ = hidden.shape
    q, k, v = ((hidden @ w.T).reshape(batch, length, heads, -1) for w in w_qkv.chunk(3))
    return attention(q, k, v, scale, causal).reshape(batch, length, -1) @ w_o.T
