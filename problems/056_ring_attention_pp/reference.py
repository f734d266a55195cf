"""A pipeline of attention layers, each under context parallelism.

The ranks form a grid of pipeline stages and context-parallel (CP) ranks. Every stage holds one attention layer (QKV projection
and output projection, all heads), equal on the CP ranks of the stage; CP rank g handles positions g*S .. (g+1)*S - 1. Stage 0
starts from its hidden states, every later stage from what the stage before sends. A stage projects, attends by ring attention
over its CP group (keys and values travel, partial results are merged by log-sum-exp), projects back and passes the result on.
This is pipeline-parallel inference or the forward of pipeline-parallel training on long sequences (Megatron-LM's cp-pp order).
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
    cp_group: dist.ProcessGroup | None = None,
    pp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return this stage's own output at the local positions, (B, S, Hd) in the dtype of hidden_states.

    hidden_states: (B, S, Hd), the input of stage 0; later stages only take its shape, dtype and device. w_qkv: (3 * heads * D,
    Hd), rows of all query heads, then key heads, then value heads. w_o: (Hd, heads * D). softmax_scale: factor of the scores,
    D**-0.5 if None. causal: position i sees positions up to i of the whole sequence. cp_group: the ring; None is the world.
    pp_group: the ranks of this CP position in order of stages; None is a single stage.
    """
    cp_group = dist.group.WORLD if cp_group is None else cp_group
    stages = 1 if pp_group is None else dist.get_world_size(pp_group)
    stage = 0 if pp_group is None else dist.get_rank(pp_group)
    batch, positions, _ = hidden_states.shape
    head_dim = w_qkv.shape[0] // 3 // num_heads
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale

    if stage == 0:
        stage_input = hidden_states
    else:
        stage_input = torch.empty_like(hidden_states)
        dist.recv(stage_input, src=dist.get_global_rank(pp_group, stage - 1), group=pp_group)

    qkv = F.linear(stage_input, w_qkv).view(batch, positions, 3, num_heads, head_dim)
    q, k, v = qkv.unbind(dim=2)
    context = ring_attention(q, k, v, scale, causal, cp_group)
    output = F.linear(context.reshape(batch, positions, num_heads * head_dim), w_o)

    if stage < stages - 1:
        dist.send(output, dst=dist.get_global_rank(pp_group, stage + 1), group=pp_group)
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
