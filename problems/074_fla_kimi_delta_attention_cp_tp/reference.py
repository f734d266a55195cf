"""Kimi Delta Attention over a sequence sharded by context parallelism, summed over tensor parallelism.

Kimi Linear (FLA, flash-linear-attention) keeps per head a state S of shape (K, V) that every token decays channel by
channel, corrects by the delta rule and reads:

    S_t = diag(decay_t) S_(t-1);  S_t += k_t u_t^T  with  u_t = b_t (v_t - S_t^T k_t) before the update;  o_t = S_t^T q_t.

Each rank holds one contiguous shard of the sequence (context-parallel rank c has positions c*s .. c*s + s - 1) for its
own heads (tensor-parallel ranks have different heads) and the gate parameters of those heads. The plain form gathers the
sequence on every rank, runs the recurrence over all of it, sums over the tensor-parallel ranks (the head outputs stand
in for the partial outputs of the row-parallel projection that follows) and keeps the own shard.
"""

import torch
import torch.distributed as dist

LOWER_BOUND = -5.0  # of the log-decay per token
CHUNK = 32  # tokens solved together


def gather_sequence(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenate the shards (B, s, ...) of all ranks along the sequence, in rank order."""
    shards = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, x.contiguous(), group=group)
    return torch.cat(shards, dim=1)


def normalize(x: torch.Tensor) -> torch.Tensor:
    """Unit length along the last dimension."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The recurrence above, a chunk of tokens at a time.

    q, k, log_decay: (B, H, L, K). v: (B, H, L, V). b: (B, H, L). Returns o: (B, H, L, V).

    Within a chunk that starts from state S, with g_i the log-decay summed over the chunk's tokens up to and including i,
    the corrections solve a unit lower triangular system:
        u_i + b_i sum_(j<i) (k_i . k_j e^(g_i - g_j)) u_j = b_i (v_i - S^T (k_i e^(g_i))).
    """
    batch, heads, length, key_dim = k.shape
    state = torch.zeros(batch, heads, key_dim, v.shape[-1], dtype=q.dtype, device=q.device)
    outputs = []
    for start in range(0, length, CHUNK):
        part = slice(start, start + CHUNK)
        q_c, k_c, v_c, b_c = q[:, :, part], k[:, :, part], v[:, :, part], b[:, :, part, None]
        g = log_decay[:, :, part].cumsum(dim=2)

        # decay[i, j] = e^(g_i - g_j), per channel: how much of token j's write is left at token i >= j.
        decay = (g[:, :, :, None] - g[:, :, None]).clamp(max=0.0).exp()
        k_on_k = torch.einsum("bhik,bhjk,bhijk->bhij", k_c, k_c, decay).tril(-1)
        q_on_k = torch.einsum("bhik,bhjk,bhijk->bhij", q_c, k_c, decay).tril()

        u = b_c * (v_c - (k_c * g.exp()) @ state)
        u = torch.linalg.solve_triangular(b_c * k_on_k, u, upper=False, unitriangular=True)
        outputs.append((q_c * g.exp()) @ state + q_on_k @ u)

        last = g[:, :, -1:]
        state = last.exp().transpose(2, 3) * state + (k_c * (last - g).exp()).transpose(2, 3) @ u
    return torch.cat(outputs, dim=2)


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the attention output of this rank's sequence shard, summed over tp_group.

    q, k: (B, s, H, K), own shard. v: (B, s, H, V). g: (B, s, H, K), raw gate: the decay of channel c of head h is
    exp(-5 sigmoid(exp(a_log[h]) (g + dt_bias[h, c]))). beta: (B, s, H), raw write strength: b = sigmoid(beta).
    a_log: (H,). dt_bias: (H*K,). cp_group None is the whole world; tp_group None is no tensor parallelism.
    Queries and keys are scaled to unit length, queries also by K^(-1/2). The recurrence runs in float32 (no TF32).
    Returns (B, s, H, V) in the dtype of q.
    """
    cp_size = dist.get_world_size(cp_group)
    cp_rank = dist.get_rank(cp_group)
    shard = q.shape[1]
    heads, key_dim = q.shape[2:]
    if cp_size > 1:
        q, k, v, g, beta = (gather_sequence(x, cp_group) for x in (q, k, v, g, beta))

    wide = torch.promote_types(q.dtype, torch.float32)
    slope = a_log.to(wide).exp()[:, None]
    log_decay = LOWER_BOUND * torch.sigmoid(slope * (g.to(wide) + dt_bias.to(wide).view(heads, key_dim)))
    b = torch.sigmoid(beta.to(wide))
    q_unit = normalize(q.to(wide)) * key_dim**-0.5
    k_unit = normalize(k.to(wide))

    heads_first = [x.transpose(1, 2) for x in (q_unit, k_unit, v.to(wide), log_decay, b)]
    out = delta_rule(*heads_first).transpose(1, 2).to(q.dtype).contiguous()

    if tp_group is not None and dist.get_world_size(tp_group) > 1:
        dist.all_reduce(out, group=tp_group)
    if cp_size > 1:
        out = out[:, cp_rank * shard : (cp_rank + 1) * shard].contiguous()
    return out
