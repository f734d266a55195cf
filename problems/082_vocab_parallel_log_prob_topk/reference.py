"""Log-probabilities of given tokens under top-k / top-p sampling, from logits split along the vocabulary.

Reinforcement learning of language models (NeMo-RL) needs the log-probability that the sampler, filters included, gave to
each generated token. Each rank holds the columns [rank * v, (rank + 1) * v) of the logits of all B*S tokens and all
targets. An all-to-all exchanges columns for tokens, so that each rank filters and normalises whole rows of its share of
the tokens; an all-gather returns the chosen log-probabilities to all ranks.
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
) -> torch.Tensor:
    """Return the log-probability of every target token.

    vocab_parallel_logits: (B, S, v). target: (B, S) int64, global ids, the same on all ranks. top_k None or <= 0 and top_p
    None or >= 1 switch a filter off. Filtering is in the dtype of the logits, the log-softmax in float32.
    Returns (B, S) float32, the same on all ranks, minus infinity where the target was filtered out.
    Raises ValueError if W does not divide B*S.
    """
    world_size = dist.get_world_size(tp_group)
    rank = dist.get_rank(tp_group)
    batch, length, columns = vocab_parallel_logits.shape
    tokens = batch * length
    if tokens % world_size:
        raise ValueError(f"{tokens} tokens do not divide over {world_size} ranks")
    per_rank = tokens // world_size

    rows = gather_rows(vocab_parallel_logits.reshape(tokens, columns).contiguous(), tp_group)
    kept = filter_logits(rows, top_k, top_p)

    wide = torch.promote_types(rows.dtype, torch.float32)
    log_probs = kept.to(wide).log_softmax(dim=1)
    own_target = target.reshape(-1)[rank * per_rank : (rank + 1) * per_rank]
    chosen = log_probs.gather(1, own_target[:, None]).squeeze(1)

    gathered = torch.empty(tokens, dtype=chosen.dtype, device=chosen.device)
    dist.all_gather_into_tensor(gathered, chosen, group=tp_group)
    return gathered.view(batch, length)
