"""Gated DeltaNet over a sequence sharded by context parallelism: exchange positions for heads, scan, exchange back.

Linear-attention models (Gated DeltaNet in FLA, Qwen3-Next) keep per value head a state S of shape (K, V) that every
token decays by one scalar, corrects by the delta rule and reads:

    S_t = decay_t S_(t-1);  S_t += k_t u_t^T  with  u_t = beta_t (v_t - S_t^T k_t) before the update;  o_t = S_t^T q_t.

The scan needs the whole sequence of a head. Each rank holds one contiguous shard of the sequence (rank r has positions
r*s .. r*s + s - 1) for all heads, and the gate parameters of the value heads [r * Hv/W, (r+1) * Hv/W), which it scans
over the whole sequence between two all-to-alls. Every rank returns its sequence shard of all value heads.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

CHUNK = 32  # tokens solved together


def sequence_to_heads(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """(B, s, H, d) local positions of all heads -> (B, W*s, H/W, d) all positions of own heads."""
    world_size = dist.get_world_size(group)
    send = torch.stack(x.chunk(world_size, dim=2))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(list(received), dim=1)


def heads_to_sequence(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The inverse: (B, W*s, h, d) -> (B, s, W*h, d)."""
    world_size = dist.get_world_size(group)
    send = torch.stack(x.chunk(world_size, dim=1))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(list(received), dim=2)


def normalize(x: torch.Tensor) -> torch.Tensor:
    """Unit length along the last dimension."""
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """The recurrence above, a chunk of tokens at a time.

    q, k: (B, H, L, K). v: (B, H, L, V). log_decay, beta: (B, H, L). Returns o: (B, H, L, V).

    Within a chunk that starts from state S, with g_i the log-decay summed over the chunk's tokens up to and including i,
    the corrections solve a unit lower triangular system:
        u_i + beta_i sum_(j<i) e^(g_i - g_j) (k_i . k_j) u_j = beta_i (v_i - e^(g_i) S^T k_i).
    """
    batch, heads, length, key_dim = k.shape
    state = torch.zeros(batch, heads, key_dim, v.shape[-1], dtype=q.dtype, device=q.device)
    outputs = []
    for start in range(0, length, CHUNK):
        part = slice(start, start + CHUNK)
        q_c, k_c, v_c, beta_c = q[:, :, part], k[:, :, part], v[:, :, part], beta[:, :, part, None]
        g = log_decay[:, :, part, None].cumsum(dim=2)

        # decay[i, j] = e^(g_i - g_j): how much of token j's write is left at token i >= j.
        decay = (g - g.transpose(2, 3)).clamp(max=0.0).exp()
        k_on_k = (k_c @ k_c.transpose(2, 3) * decay).tril(-1)
        q_on_k = (q_c @ k_c.transpose(2, 3) * decay).tril()

        u = beta_c * (v_c - g.exp() * (k_c @ state))
        u = torch.linalg.solve_triangular(beta_c * k_on_k, u, upper=False, unitriangular=True)
        outputs.append(g.exp() * (q_c @ state) + q_on_k @ u)

        last = g[:, :, -1:]
        state = last.exp() * state + (k_c * (last - g).exp()).transpose(2, 3) @ u
    return torch.cat(outputs, dim=2)


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the attention output of this rank's sequence shard for all value heads.

    q, k: (B, s, Hq, K). v: (B, s, Hv, V). gate: (B, s, Hv), raw: decay = exp(-exp(a_log) softplus(gate + dt_bias)).
    beta: (B, s, Hv), write strength in (0, 1). a_log, dt_bias: (Hv/W,), own value heads only. Value head i uses query/key
    head i // (Hv / Hq). Queries and keys are scaled to unit length, queries also by K^(-1/2). The scan runs in float32 (no
    TF32). Returns (B, s, Hv, V) in the dtype of q.
    """
    q_own = sequence_to_heads(q, group)
    k_own = sequence_to_heads(k, group)
    v_own = sequence_to_heads(v, group)
    gate_own = sequence_to_heads(gate[..., None], group).squeeze(-1)
    beta_own = sequence_to_heads(beta[..., None], group).squeeze(-1)

    query_heads, key_dim = q_own.shape[2:]
    value_heads = v_own.shape[2]
    assert value_heads % query_heads == 0, "value heads must be a multiple of query heads"
    repeats = value_heads // query_heads

    wide = torch.promote_types(q.dtype, torch.float32)
    q_unit = normalize(q_own.to(wide)).repeat_interleave(repeats, dim=2) * key_dim**-0.5
    k_unit = normalize(k_own.to(wide)).repeat_interleave(repeats, dim=2)
    log_decay = -a_log.to(wide).exp() * F.softplus(gate_own.to(wide) + dt_bias.to(wide))

    heads_first = [x.transpose(1, 2) for x in (q_unit, k_unit, v_own.to(wide), log_decay, beta_own.to(wide))]
    out = delta_rule(*heads_first).transpose(1, 2).to(q.dtype)
    return heads_to_sequence(out, group)
