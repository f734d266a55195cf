"""Row block r of the sum of all ranks' tensors, added on one process."""


def statement(ranks):
    total = sum(tensor for (tensor,) in ranks)
    rows = total.shape[0] // len(ranks)
    return [total[rank * rows : (rank + 1) * rows] for rank in range(len(ranks))]
