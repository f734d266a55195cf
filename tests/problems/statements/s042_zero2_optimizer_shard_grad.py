"""Rank 0's parameters after one Adam step with the gradient over the whole batch; moments cut into slices."""

from tests.problems.statements.mlp_step import sharded_adam_step


def statement(ranks):
    return sharded_adam_step(ranks)
