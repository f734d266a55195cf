"""Ring attention, forward: exact attention over a sequence that is split over the ranks.

Rank g of the group holds positions g*S .. (g+1)*S - 1 of the queries, keys and values. The queries stay; keys and values
travel around the ring, one hop per step, while each rank attends to the block it holds. Partial results over disjoint sets of
keys are merged by their log-sum-exp in fp32. The result is that of full (or causal) attention over the whole sequence. This
is context parallelism for long sequences (ring-flash-attention, Megatron-LM), here with contiguous shards.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the attention output of the local queries, (B, S, H, D) in the dtype of q.

    q, k, v: (B, S, H, D), this rank's shard of the sequence; the same S on all ranks. softmax_scale: factor of the scores,
    D**-0.5 if None. causal: position i sees positions up to i of the whole sequence. group: the ring; None is the world.
    """
    group = dist.group.WORLD if group is None else group
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return ring_attention(q, k, v, scale, causal, group)


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, group: dist.ProcessGroup
) -> torch.Tensor:
    """Attention of the local queries over the keys and values of all ranks of ``group``; all tensors (B, S, heads, D)."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    k, v = k.contiguous(), v.contiguous()
    out = lse = None

    for step in range(size):
        # The rank now holds the keys and values of group rank (rank - step) % size; pass them on while computing.
        last = step == size - 1
        if not last:
            next_k, next_v, requests = start_shift(k, v, group)

        if not causal or step <= rank:  # otherwise all these keys lie in the future of all local queries
            block_out, block_lse = attention_block(q, k, v, scale, masked=causal and step == 0)
            if out is None:
                out, lse = block_out, block_lse
            else:
                # Merge two softmaxes over disjoint keys: their weights are exp(lse) and exp(block_lse), normalised.
                out = out - torch.sigmoid(block_lse - lse) * (out - block_out)
                lse = lse - F.logsigmoid(lse - block_lse)

        if not last:
            for request in requests:
                request.wait()
            k, v = next_k, next_v
    return out.to(q.dtype)


def attention_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, masked: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention over one block of keys, in fp32: output (B, S, heads, D) and log-sum-exp (B, S, heads, 1)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.transpose(1, 2).to(dtype) for x in (q, k, v))  # (B, heads, S, D)
    scores = (q @ k.transpose(-2, -1)) * scale
    if masked:  # keys after the query
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    out = torch.softmax(scores, dim=-1) @ v
    return out.transpose(1, 2), lse.transpose(1, 2)


def start_shift(k: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor, list]:
    """Start sending k and v to the next rank of the ring; returns the buffers being received from the previous one."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    following = dist.get_global_rank(group, (rank + 1) % size)
    previous = dist.get_global_rank(group, (rank - 1) % size)
    next_k, next_v = torch.empty_like(k), torch.empty_like(v)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, k, following, group),
            dist.P2POp(dist.isend, v, following, group),
            dist.P2POp(dist.irecv, next_k, previous, group),
            dist.P2POp(dist.irecv, next_v, previous, group),
        ]
    )
    return next_k, next_v, requests
