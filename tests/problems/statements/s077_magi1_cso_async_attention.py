"""Softmax attention of every range over its window of the whole key list, all heads at once."""

import torch


def statement(ranks):
    _, _, windows, num_ranges, clip = ranks[0]
    world_size = len(ranks)
    query, kv = (torch.stack([r[i].double().unflatten(0, (num_ranges, -1)) for r in ranks], dim=1) for i in range(2))
    query, kv = query.flatten(1, 2), kv.flatten(1, 2)  # (R, W*p, heads, ...)
    head_dim, query_heads = query.shape[-1], query.shape[2]
    rows = kv[:, : clip or kv.shape[1]].flatten(0, 1)
    head_of = torch.arange(query_heads) * rows.shape[1] // query_heads
    key, value = rows[:, head_of].split(head_dim, dim=-1)
    outputs = []
    for r, (start, end) in enumerate(windows.tolist()):
        scores = torch.einsum("qhd,khd->hqk", query[r], key[start:end]) / head_dim**0.5
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value[start:end]))
    out = torch.stack(outputs).unflatten(1, (world_size, -1))
    return [out[:, rank].flatten(0, 1) for rank in range(world_size)]
