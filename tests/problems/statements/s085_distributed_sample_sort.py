"""Python's sort of all values, cut into even slices."""

import torch


def statement(ranks):
    values = sorted(x for (shard, *_) in ranks for x in shard.tolist())
    base, extra = divmod(len(values), len(ranks))
    lengths = [base + (rank < extra) for rank in range(len(ranks))]
    return list(torch.tensor(values, dtype=ranks[0][0].dtype).split(lengths))
