"""The sum of all ranks' tensors at the destination, each rank's own tensor elsewhere."""


def statement(ranks):
    dst = ranks[0][1]
    total = sum(tensor for tensor, _ in ranks)
    return [total if rank == dst else tensor for rank, (tensor, _) in enumerate(ranks)]
