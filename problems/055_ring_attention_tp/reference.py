"""Attention layer under tensor and context parallelism: heads split over one group, the sequence over another.

The sequence is split over the ranks of the context-parallel (CP) group: CP rank g holds positions g*S .. (g+1)*S - 1 of the
hidden states, which are equal on its tensor-parallel (TP) peers. The heads are split over the TP group: each rank holds the
QKV projection and the output projection of its heads. A rank projects its positions, attends by ring attention over the CP
group (keys and values travel, partial results are merged by log-sum-exp), projects back, and the TP group sums the partial
outputs. This is the attention layer of long-context training (Megatron-LM's tp-cp order, ring-flash-attention).
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    tp_group: dist.ProcessGroup | None = None,
    cp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the layer's output at the local positions, (B, S, Hd) in the dtype of hidden_states, equal on TP peers.

    hidden_states: (B, S, Hd). w_qkv: (3 * Hl * D, Hd), rows of all local query heads, then key heads, then value heads, with
    Hl = num_heads / TP size. w_o: (Hd, Hl * D). num_heads: of the whole layer. softmax_scale: factor of the scores, D**-0.5 if
    None. causal: position i sees positions up to i of the whole sequence. tp_group, cp_group: None is the world.
    """
    tp_group = dist.group.WORLD if tp_group is None else tp_group
    cp_group = dist.group.WORLD if cp_group is None else cp_group
    tp_size = dist.get_world_size(tp_group)
    batch, positions, _ = hidden_states.shape
    local_heads = num_heads // tp_size
    head_dim = w_qkv.shape[0] // 3 // local_heads
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale

    qkv = F.linear(hidden_states, w_qkv).view(batch, positions, 3, local_heads, head_dim)
    q, k, v = qkv.unbind(dim=2)
    context = ring_attention(q, k, v, scale, causal, cp_group)
    output = F.linear(context.reshape(batch, positions, local_heads * head_dim), w_o)
    if tp_size > 1:
        dist.all_reduce(output, op=dist.ReduceOp.SUM, group=tp_group)
    return output


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
