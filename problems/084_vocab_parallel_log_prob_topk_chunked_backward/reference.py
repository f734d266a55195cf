"""Gradient of filtered token log-probabilities with respect to vocabulary-sharded logits, in chunks of tokens.

Training on sampled tokens (NeMo-RL) differentiates the log-probability that the sampler, filters included, gave to each
token. Each rank holds the columns [rank * v, (rank + 1) * v) of the logits of all B*S tokens, all targets, and the
gradient of the loss with respect to every token's log-probability. Chunk by chunk of the flat token order, an all-to-all
exchanges columns for tokens, each rank recomputes the filter and forms the gradient of whole rows of its share of the
chunk, and a second all-to-all sends the columns back to their owners. Every rank returns the gradient of its columns.
"""

import torch
import torch.distributed as dist


def gather_rows(columns: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """(t, v) own columns of all tokens -> (t/W, W*v) all columns of this rank's run of tokens."""
    world_size = dist.get_world_size(group)
    received = torch.empty_like(columns)
    dist.all_to_all_single(received, columns, group=group)
    return torch.cat(received.chunk(world_size), dim=1)


def scatter_columns(rows: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The inverse: (m, W*v) all columns of own tokens -> (W*m, v) own columns of all tokens."""
    world_size = dist.get_world_size(group)
    send = torch.cat(rows.chunk(world_size, dim=1))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received


def kept_by_filter(rows: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """(m, V) bool: which logits sampling keeps. rows: (m, V).

    top_k keeps everything not below the k-th largest logit. top_p then keeps the most probable logits: position i of the
    ascending order stays if the probabilities up to and including i sum to more than 1 - top_p; the largest always stays.
    """
    vocabulary = rows.shape[1]
    use_top_k = top_k is not None and top_k > 0
    use_top_p = top_p is not None and top_p < 1
    if not use_top_p:
        if not use_top_k:
            return torch.ones_like(rows, dtype=torch.bool)
        return rows >= rows.topk(min(top_k, vocabulary), dim=1).values[:, -1:]

    ascending, order = rows.sort(dim=1)
    keep = torch.ones_like(ascending, dtype=torch.bool)
    if use_top_k:
        k = min(top_k, vocabulary)
        keep = ascending >= ascending[:, vocabulary - k, None]
    probabilities = ascending.masked_fill(~keep, -torch.inf).softmax(dim=1)
    wide = torch.promote_types(rows.dtype, torch.float32)
    running = probabilities.cumsum(dim=1, dtype=wide).to(rows.dtype)
    in_nucleus = running > torch.tensor(1 - top_p, dtype=rows.dtype, device=rows.device)
    in_nucleus[:, -1] = True
    return torch.empty_like(keep).scatter_(1, order, keep & in_nucleus)


def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    grad_output: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    """Return d(sum of grad_output * log-probability of target) / d(own logits).

    vocab_parallel_logits: (B, S, v). target: (B, S) int64, global ids, and grad_output: (B, S), both the same on all ranks.
    top_k None or <= 0 and top_p None or >= 1 switch a filter off. A chunk is B * max(1, chunk_size) consecutive tokens in
    batch-major order, the last one may be shorter. Filtering is in the dtype of the logits, the softmax in float32.
    With P the softmax over the kept classes, a kept class j gets g * (1[j = target] - P_j), a filtered one 0, even the target.
    Returns (B, S, v) float32. Raises ValueError if W does not divide B*S or the chunk.
    """
    world_size = dist.get_world_size(tp_group)
    rank = dist.get_rank(tp_group)
    batch, length, columns = vocab_parallel_logits.shape
    tokens = batch * length
    chunk_tokens = batch * max(1, chunk_size)
    if tokens % world_size:
        raise ValueError(f"{tokens} tokens do not divide over {world_size} ranks")
    if chunk_tokens % world_size:
        raise ValueError(f"chunks of {chunk_tokens} tokens do not divide over {world_size} ranks")
    logits = vocab_parallel_logits.reshape(tokens, columns)
    flat_target = target.reshape(-1)
    flat_grad = grad_output.reshape(-1)
    wide = torch.promote_types(logits.dtype, torch.float32)

    gradients = []
    for start in range(0, tokens, chunk_tokens):
        chunk = logits[start : start + chunk_tokens]
        per_rank = chunk.shape[0] // world_size
        own = slice(start + rank * per_rank, start + (rank + 1) * per_rank)

        rows = gather_rows(chunk.contiguous(), tp_group)
        kept = kept_by_filter(rows, top_k, top_p)
        gradient = -rows.masked_fill(~kept, -torch.inf).to(wide).softmax(dim=1)
        gradient.scatter_add_(1, flat_target[own, None], torch.ones(per_rank, 1, dtype=wide, device=rows.device))
        gradient = gradient * flat_grad[own, None].to(wide) * kept

        gradients.append(scatter_columns(gradient, tp_group))
    return torch.cat(gradients).view(batch, length, columns)
