"""Log-probabilities under top-k / top-p sampling from vocabulary-sharded logits, in chunks of tokens to bound memory.

Reinforcement learning of language models (NeMo-RL) needs the log-probability that the sampler, filters included, gave to
each generated token; whole rows of all tokens would not fit beside the model. Each rank holds the columns [rank * v,
(rank + 1) * v) of the logits of all B*S tokens and all targets. Chunk by chunk of the flat token order, an all-to-all
exchanges columns for tokens, each rank filters and normalises whole rows of its share of the chunk, and an all-gather
returns the chosen log-probabilities to all ranks.
"""

import torch
import torch.distributed as dist


def gather_rows(columns: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """(t, v) own columns of all tokens -> (t/W, W*v) all columns of this rank's run of tokens."""
    world_size = dist.get_world_size(group)
    received = torch.empty_like(columns)
    dist.all_to_all_single(received, columns, group=group)
    return torch.cat(received.chunk(world_size), dim=1)


def filter_logits(rows: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Set the logits that sampling excludes to minus infinity. rows: (m, V).

    top_k keeps everything not below the k-th largest logit. top_p then keeps the most probable logits: position i of the
    ascending order stays if the probabilities up to and including i sum to more than 1 - top_p; the largest always stays.
    """
    vocabulary = rows.shape[1]
    use_top_k = top_k is not None and top_k > 0
    use_top_p = top_p is not None and top_p < 1
    if not use_top_p:
        if not use_top_k:
            return rows
        threshold = rows.topk(min(top_k, vocabulary), dim=1).values[:, -1:]
        return rows.masked_fill(rows < threshold, -torch.inf)

    ascending, order = rows.sort(dim=1)
    if use_top_k:
        k = min(top_k, vocabulary)
        ascending = ascending.masked_fill(ascending < ascending[:, vocabulary - k, None], -torch.inf)
    probabilities = ascending.softmax(dim=1)
    wide = torch.promote_types(rows.dtype, torch.float32)
    running = probabilities.cumsum(dim=1, dtype=wide).to(rows.dtype)
    keep = running > torch.tensor(1 - top_p, dtype=rows.dtype, device=rows.device)
    keep[:, -1] = True
    return torch.empty_like(rows).scatter_(1, order, ascending.masked_fill(~keep, -torch.inf))


def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    """Return the log-probability of every target token.

    vocab_parallel_logits: (B, S, v). target: (B, S) int64, global ids, the same on all ranks. top_k None or <= 0 and top_p
    None or >= 1 switch a filter off. A chunk is B * max(1, chunk_size) consecutive tokens in batch-major order, the last
    one may be shorter. Filtering is in the dtype of the logits, the log-softmax in float32.
    Returns (B, S) float32, the same on all ranks, minus infinity where the target was filtered out.
    Raises ValueError if W does not divide B*S or the chunk.
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
    wide = torch.promote_types(logits.dtype, torch.float32)

    results = []
    for start in range(0, tokens, chunk_tokens):
        chunk = logits[start : start + chunk_tokens]
        per_rank = chunk.shape[0] // world_size

        rows = gather_rows(chunk.contiguous(), tp_group)
        log_probs = filter_logits(rows, top_k, top_p).to(wide).log_softmax(dim=1)
        own_start = start + rank * per_rank
        chosen = log_probs.gather(1, flat_target[own_start : own_start + per_rank, None]).squeeze(1)

        gathered = torch.empty(chunk.shape[0], dtype=chosen.dtype, device=chosen.device)
        dist.all_gather_into_tensor(gathered, chosen, group=tp_group)
        results.append(gathered)
    return torch.cat(results).view(batch, length)
