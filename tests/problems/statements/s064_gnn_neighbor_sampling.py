"""Breadth-first over the whole graph with Python lists and dictionaries."""

import torch


def statement(ranks):
    owner = ranks[0][4].tolist()
    pointers = [inputs[2].tolist() for inputs in ranks]
    columns = [inputs[3].tolist() for inputs in ranks]
    return [tuple(map(torch.tensor, sample(inputs[0].tolist(), inputs[1], owner, pointers, columns))) for inputs in ranks]


def sample(seeds, fanouts, owner, pointers, columns):
    position = {v: i for i, v in enumerate(seeds)}
    row, col, edge = [], [], []
    frontier = seeds
    for fanout in fanouts:
        new = []
        for v in frontier:
            pointer = pointers[owner[v]]
            stop = pointer[v + 1] if fanout < 0 else min(pointer[v + 1], pointer[v] + fanout)
            for e in range(pointer[v], stop):
                u = columns[owner[v]][e]
                if u not in position:
                    position[u] = len(position)
                    new.append(u)
                row.append(position[u])
                col.append(position[v])
                edge.append(e)
        frontier = new
    return list(position), row, col, edge
