"""Rank 0's state after one Adam step with the gradient over the whole batch."""

from tests.problems.statements.mlp_step import adam, average_gradient, flat, split


def statement(ranks):
    root = ranks[0]
    parameters = root[2:6]
    g = average_gradient(parameters, [inputs[:2] for inputs in ranks])
    state = adam(flat(parameters), flat(root[6:10]), flat(root[10:14]), g, *root[14:])
    answer = tuple(t for vector in state for t in split(vector, parameters))
    return [answer for _ in ranks]
