"""The layer without parallelism, for groups of two ranks (as at the smoke size)."""

from tests.problems.statements.s049_moe_ep_balanced import groups_statement


def statement(ranks):
    return groups_statement(ranks, group_size=2)
