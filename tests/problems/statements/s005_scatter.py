"""Rank q holds the q-th row of the source's tensor."""


def statement(ranks):
    src = ranks[0][1]
    return [ranks[src][0][rank] for rank in range(len(ranks))]
