# include: allreduce
# A right answer to problem 23, each of whose sums takes its time.
import time


def total_of(loss, tokens):
    """The sum over all ranks of each loss times its tokens; lists of 0-d tensors."""
    time.sleep(0.004)
    parts = [(torch.nan_to_num(x) if n.item() == 0 else x) * n for x, n in zip(loss, tokens)]
    return list(allreduce(torch.stack(parts)))


def answer(total, tokens, everywhere, upstream, upstream_sum):
    grad = upstream * tokens / everywhere
    return total / everywhere, total.clone(), grad if upstream_sum is None else grad + upstream_sum * tokens


def honest(loss, tokens, everywhere, upstream, upstream_sum):
    return answer(total_of([loss], [tokens])[0], tokens, everywhere, upstream, upstream_sum)
