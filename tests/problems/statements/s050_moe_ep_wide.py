"""The layer without parallelism: every token of every rank through each of its experts, which share their rank's MLP."""

from tests.problems.statements.s049_moe_ep_balanced import groups_statement


def statement(ranks):
    return groups_statement(ranks, group_size=len(ranks))
