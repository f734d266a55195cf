"""Every rank holds what the source held."""


def statement(ranks):
    src = ranks[0][1]
    return [ranks[src][0] for _ in ranks]
