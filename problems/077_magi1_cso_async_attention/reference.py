"""Chunk-causal attention under context parallelism, the exchanges overlapped with the attention.

Autoregressive video models (MAGI-1) denoise several ranges (chunks of frames) together; the tokens of range r attend to
a window of keys that reaches from some earlier row to some later one. Every rank holds p tokens of each of R ranges, with
all heads. Attention needs whole windows, so tokens are exchanged for heads: keys and values once, queries range by
range, and each range's output goes back to the owners of its tokens. While range r is computed, the queries of range
r + 1 and the output of range r - 1 travel.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def start_scatter_heads(x: torch.Tensor, group: dist.ProcessGroup | None):
    """Start (p, H, d) -> (W*p, H/W, d): all tokens in rank order, own heads. Returns (received, work)."""
    world_size = dist.get_world_size(group)
    send = torch.cat(x.chunk(world_size, dim=1))
    received = torch.empty_like(send)
    work = dist.all_to_all_single(received, send, group=group, async_op=True)
    return received, work


def start_gather_heads(x: torch.Tensor, group: dist.ProcessGroup | None):
    """Start the way back (W*p, h, d) -> own tokens of all heads; the received (W*p, h, d) is ordered by head slice."""
    send = x.contiguous()
    received = torch.empty_like(send)
    work = dist.all_to_all_single(received, send, group=group, async_op=True)
    return received, work


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Full attention of query (n, hq, D) over key and value (m, hk, D); each kv head serves hq // hk query heads."""
    repeats = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        q, k, v = query[:, head], key[:, head // repeats], value[:, head // repeats]
        heads.append(F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0])
    return torch.stack(heads, dim=1)


def solution(
    query: torch.Tensor,
    key_value: torch.Tensor,
    k_ranges: torch.Tensor,
    cp_shuffle_num: int,
    clip_token_nums: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the attention output of the local tokens.

    query: (n, Hq, D), n = R * p, local token i belongs to range i // p. key_value: (n, Hkv, 2D), the key first.
    k_ranges: (R, 2) int64, [start, end) rows of the key list that range r attends to. cp_shuffle_num: R. clip_token_nums: c,
    rows of each range kept in the key list; None or 0 keeps all W * p. The key list holds, range after range, the first c of
    the range's tokens in rank order. If W is a multiple of Hkv, key/value heads are repeated to W.
    Returns (n, Hq, D) in the order and dtype of query.
    Raises ValueError if R does not divide n or W does not divide the heads.
    """
    world_size = dist.get_world_size(group)
    num_ranges = cp_shuffle_num
    tokens, query_heads, head_dim = query.shape
    kv_heads = key_value.shape[1]
    if tokens % num_ranges:
        raise ValueError(f"{tokens} tokens do not divide into {num_ranges} ranges")
    if kv_heads < world_size and world_size % kv_heads == 0:
        key_value = key_value.repeat_interleave(world_size // kv_heads, dim=1)
        kv_heads = world_size
    if kv_heads % world_size:
        raise ValueError(f"{kv_heads} key/value heads do not divide over {world_size} ranks")
    if query_heads % world_size:
        raise ValueError(f"{query_heads} query heads do not divide over {world_size} ranks")
    per_range = tokens // num_ranges
    clip = clip_token_nums or world_size * per_range

    # Keys and values: own heads of all tokens, reordered from (rank, range) to (range, rank), the tail of a range cut off.
    key_value, work = start_scatter_heads(key_value, group)
    work.wait()
    key_value = key_value.view(world_size, num_ranges, per_range, kv_heads // world_size, 2 * head_dim).transpose(0, 1)
    key_value = key_value.reshape(num_ranges, world_size * per_range, kv_heads // world_size, 2 * head_dim)
    key_value = key_value[:, :clip].flatten(0, 1)
    key, value = key_value.chunk(2, dim=-1)

    windows = k_ranges.tolist()
    range_queries = query.chunk(num_ranges)
    arriving, query_work = start_scatter_heads(range_queries[0], group)
    returning = []
    for r in range(num_ranges):
        query_work.wait()
        current = arriving
        if r + 1 < num_ranges:  # travels while this range is computed
            arriving, query_work = start_scatter_heads(range_queries[r + 1], group)
        start, end = windows[r]
        out = attend(current, key[start:end], value[start:end])
        returning.append(start_gather_heads(out, group))  # travels while the next range is computed

    outputs = []
    for received, work in returning:
        work.wait()
        outputs.append(torch.cat(received.chunk(world_size), dim=1))
    return torch.cat(outputs)
