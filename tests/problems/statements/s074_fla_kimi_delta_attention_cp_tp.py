"""The recurrence token by token on the whole sequence."""

import torch


def scan(q, k, v, g, beta, a_log, dt_bias):
    q, k, v, g, beta, a_log, dt_bias = (x.double() for x in (q, k, v, g, beta, a_log, dt_bias))
    _, length, heads, key_dim = q.shape
    decay = torch.exp(-5 * torch.sigmoid(a_log.exp()[:, None] * (g + dt_bias.view(heads, key_dim))))
    b = torch.sigmoid(beta)
    q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12) / key_dim**0.5
    k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    state = torch.zeros(*k.shape[::2], key_dim, v.shape[-1], dtype=torch.float64)
    outputs = []
    for t in range(length):
        state = decay[:, t, :, :, None] * state
        u = b[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, dim=1)


def statement(ranks):
    tp_size = 1 if ranks[0][8] is None else len(ranks[0][8].ranks)
    total = sum(
        scan(*(torch.cat([r[i] for r in ranks[t::tp_size]], dim=1) for i in range(5)), *ranks[t][5:7]) for t in range(tp_size)
    )
    shards = total.chunk(len(ranks) // tp_size, dim=1)
    return [shards[rank // tp_size] for rank in range(len(ranks))]
