"""The recurrence token by token, on the whole sequence and all heads."""

import torch


def statement(ranks):
    q, k, v, gate, beta = (torch.cat([r[i] for r in ranks], dim=1).double() for i in range(5))
    a_log, dt_bias = (torch.cat([r[i] for r in ranks]).double() for i in (5, 6))
    batch, length, query_heads, key_dim = q.shape
    heads, value_dim = v.shape[2:]
    head_of = torch.arange(heads) // (heads // query_heads)
    q = (q / q.norm(dim=-1, keepdim=True).clamp_min(1e-6) / key_dim**0.5)[:, :, head_of]
    k = (k / k.norm(dim=-1, keepdim=True).clamp_min(1e-6))[:, :, head_of]
    decay = torch.exp(-a_log.exp() * torch.log1p(torch.exp(gate + dt_bias)))
    state = torch.zeros(batch, heads, key_dim, value_dim, dtype=torch.float64)
    outputs = []
    for t in range(length):
        state = decay[:, t, :, None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return list(torch.stack(outputs, dim=1).chunk(len(ranks), dim=1))
