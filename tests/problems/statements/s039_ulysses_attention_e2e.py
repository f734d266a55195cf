"""Multi-head attention over the whole sequence on one process."""

import torch
import torch.nn.functional as F


def statement(ranks):
    _, w_qkv, w_o, _, heads, causal = ranks[0]
    x = torch.cat([inputs[0] for inputs in ranks], 1)
    q, k, v = (F.linear(x, w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in w_qkv.chunk(3))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return list(F.linear(attended.transpose(1, 2).flatten(2), w_o).chunk(len(ranks), 1))
