"""Multi-hop neighbour sampling on a graph that is partitioned over the ranks.

Every node has an owner, and only the owner holds the node's in-edges. Each rank starts from its own seed nodes. In every hop
it sends its frontier to the owners, the owners take the first few neighbours of each node and send them back, and the nodes
that the rank sees for the first time become its next frontier. The result is a sampled subgraph with local node numbers, the
input of one step of distributed graph neural network training (PyTorch Geometric's distributed neighbour sampler).
"""

import torch
import torch.distributed as dist


def solution(
    seed_nodes: torch.Tensor,
    fanouts: list[int],
    local_adj_row_ptr: torch.Tensor,
    local_adj_col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    replace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (node, row, col, edge) of this rank's sampled subgraph, all int64.

    seed_nodes: (s,) distinct global ids; each rank has its own. fanouts: neighbours to take per node in each hop; negative means
    all. local_adj_row_ptr: (num_nodes + 1,), the in-neighbours of a node v that this rank owns are
    local_adj_col[local_adj_row_ptr[v] : local_adj_row_ptr[v + 1]], global ids; other nodes have none here. node_to_rank:
    (num_nodes,) owner of each node, as a group rank. group: None is the world. replace: ignored.
    node: (n,) global ids in order of first appearance, seeds first. row, col: (e,) positions in ``node`` of the neighbour and of
    the node it was sampled for. edge: (e,) position of the edge in its owner's local_adj_col.
    """
    group = dist.group.WORLD if group is None else group
    node = frontier = seed_nodes.to(torch.int64)
    empty = node.new_empty(0)
    neighbours, destinations, edges = [empty], [empty], [empty]

    for fanout in fanouts:
        # Send every frontier node to its owner, in frontier order per owner. A rank whose frontier is empty takes part.
        owner = node_to_rank[frontier]
        by_owner = torch.argsort(owner, stable=True)
        send = torch.bincount(owner, minlength=dist.get_world_size(group))
        requested, receive = exchange(frontier[by_owner], send, group)

        # Owner: the first entries of each requested node's range.
        start = local_adj_row_ptr[requested]
        taken = local_adj_row_ptr[requested + 1] - start
        if fanout >= 0:
            taken = taken.clamp(max=fanout)
        edge = ranges(start, taken)

        # Reply to each requester, in the order of its requests: how many per node, then the neighbours and the edges.
        requester = torch.repeat_interleave(receive)
        replies = torch.zeros_like(receive).index_add_(0, requester, taken)
        taken, _ = exchange(taken, receive, group)
        neighbour, _ = exchange(local_adj_col[edge], replies, group)
        edge, _ = exchange(edge, replies, group)

        # Put the replies, which are ordered by owner, back into frontier order.
        place = torch.argsort(by_owner)
        start = (torch.cumsum(taken, 0) - taken)[place]
        taken = taken[place]
        index = ranges(start, taken)
        neighbour, edge = neighbour[index], edge[index]
        neighbours.append(neighbour)
        edges.append(edge)
        destinations.append(torch.repeat_interleave(frontier, taken))

        # Nodes seen for the first time, in order of appearance, are the next frontier.
        seen = first_occurrences(torch.cat([node, neighbour]))
        frontier = seen[len(node) :]
        node = seen

    # Global ids to positions in ``node``.
    order = torch.argsort(node)
    row, col = (order[torch.searchsorted(node[order], torch.cat(ids))] for ids in (neighbours, destinations))
    return node, row, col, torch.cat(edges)


def exchange(values: torch.Tensor, send: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """All-to-all of a vector: send[j] values go to rank j. Returns the received values, by source rank, and their counts."""
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    received = values.new_empty(int(receive.sum()))
    dist.all_to_all_single(received, values.contiguous(), receive.tolist(), send.tolist(), group=group)
    return received, receive


def ranges(start: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Concatenation of start[i], start[i] + 1, ..., start[i] + length[i] - 1 over all i."""
    before = torch.cumsum(length, 0) - length
    return torch.repeat_interleave(start - before, length) + torch.arange(int(length.sum()), device=start.device)


def first_occurrences(ids: torch.Tensor) -> torch.Tensor:
    """The distinct ids in order of their first appearance."""
    distinct, which = torch.unique(ids, return_inverse=True)
    position = torch.arange(len(ids), device=ids.device)
    first = torch.full_like(distinct, len(ids)).scatter_reduce_(0, which, position, reduce="amin")
    return ids[torch.sort(first).values]
