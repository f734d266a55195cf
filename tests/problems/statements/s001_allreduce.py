"""The sum of all ranks' tensors, added on one process."""


def statement(ranks):
    total = sum(inputs[0] for inputs in ranks)
    return [total for _ in ranks]
