"""Ring attention, backward, with the gradients averaged over data-parallel replicas.

Rank g of the context-parallel (CP) group holds positions g*S .. (g+1)*S - 1 of the queries, keys, values, of the forward
output with its log-sum-exp, and of the output's gradient. Keys and values travel around the ring as in the forward pass; an
accumulator of their gradients travels with them, one hop behind, collects a contribution on every rank and arrives at its
owner after a full turn. At the end the gradients are averaged over the data-parallel (DP) group, whose ranks hold the same
positions of other sequences. This is the backward pass of context-parallel training (ring-flash-attention, Megatron-LM).
"""

import torch
import torch.distributed as dist


def solution(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    dp_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (dq, dk, dv), each (B, S, H, D) in the dtype of q, k, v.

    dout, q, k, v, out: (B, S, H, D), the local shard. softmax_lse: (B, H, S) fp32, log-sum-exp of each local query's scaled
    scores over the whole sequence. softmax_scale: factor of the scores, D**-0.5 if None. causal: position i sees positions up
    to i of the whole sequence. cp_group: the ring; None is the world. dp_group: None means no averaging.
    """
    cp_group = dist.group.WORLD if cp_group is None else cp_group
    size, rank = dist.get_world_size(cp_group), dist.get_rank(cp_group)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale

    held_k, held_v = k.contiguous(), v.contiguous()
    dq = dk = dv = None
    for step in range(size):
        # The rank now holds the keys and values of CP rank (rank - step) % size; pass them on while computing.
        last = step == size - 1
        if not last:
            (next_k, next_v), requests = start_shift([held_k, held_v], cp_group)

        if not causal or step <= rank:  # otherwise no local query sees these keys
            masked = causal and step == 0
            block_dq, block_dk, block_dv = backward_block(dout, q, held_k, held_v, out, softmax_lse, scale, masked)
            if step == 0:
                dq, dk, dv = block_dq, block_dk, block_dv
            else:
                dq, dk, dv = dq + block_dq, dk + block_dk, dv + block_dv

        # The gradients of the keys and values held follow them; after the last step each arrives at its owner.
        if size > 1:
            (dk, dv), following = start_shift([dk.contiguous(), dv.contiguous()], cp_group)
            for request in following:
                request.wait()
        if not last:
            for request in requests:
                request.wait()
            held_k, held_v = next_k, next_v

    gradients = dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous()
    replicas = 1 if dp_group is None else dist.get_world_size(dp_group)
    if replicas > 1:
        for gradient in gradients:
            dist.all_reduce(gradient, op=dist.ReduceOp.SUM, group=dp_group)
            gradient.div_(replicas)
    return gradients


def backward_block(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    masked: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contributions of one block of keys to dq, and to the block's own dk and dv: fp32, each (B, S, H, D)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    dout, q, k, v, out = (x.transpose(1, 2).to(dtype) for x in (dout, q, k, v, out))  # (B, H, S, D)
    scores = (q @ k.transpose(-2, -1)) * scale
    if masked:  # keys after the query
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    p = torch.exp(scores - lse.unsqueeze(-1))  # the softmax over the whole sequence, restricted to this block
    dp = dout @ v.transpose(-2, -1)
    delta = (dout * out).sum(dim=-1, keepdim=True)
    ds = p * (dp - delta)
    dq = (ds @ k) * scale
    dk = (ds.transpose(-2, -1) @ q) * scale
    dv = p.transpose(-2, -1) @ dout
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def start_shift(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> tuple[list[torch.Tensor], list]:
    """Start sending the tensors to the next rank of the ring; returns the buffers being received from the previous one."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    following = dist.get_global_rank(group, (rank + 1) % size)
    previous = dist.get_global_rank(group, (rank - 1) % size)
    received = [torch.empty_like(x) for x in tensors]
    sends = [dist.P2POp(dist.isend, x, following, group) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, previous, group) for x in received]
    return received, dist.batch_isend_irecv(sends + receives)
