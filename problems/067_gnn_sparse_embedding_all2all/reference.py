"""Push sparse embedding gradients to the ranks that own the rows.

A large embedding table is split over the ranks by row id modulo W. After a backward pass each rank holds gradients of the rows
it touched, as pairs of row id and row value, in any order and with duplicates. Every pair is sent to the rank that owns the
row, which will apply the update. This is the push of distributed sparse embedding optimisers (DGL, remainder partition).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    idx: torch.Tensor, value: torch.Tensor, num_nodes: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids, rows) of all pairs whose id this rank owns, ordered by source rank, then as they stood at the source.

    idx: (n,) global row ids, duplicates allowed; n may differ by rank. value: (n, ...) one row per id. num_nodes: rows of the
    table; not needed. group: None is the world. Ids stay global; rows of the same id are not added up.
    """
    group = dist.group.WORLD if group is None else group
    world = dist.get_world_size(group)
    if world == 1:
        return idx, value

    # Order the pairs by owner, keeping their order within each owner.
    owner = idx % world
    order = torch.argsort(owner, stable=True)
    send = torch.bincount(owner, minlength=world)

    # Tell every owner how many pairs to expect.
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    send_rows, receive_rows = send.tolist(), receive.tolist()

    # Ids, then rows.
    ids = idx.new_empty(sum(receive_rows))
    rows = value.new_empty(sum(receive_rows), *value.shape[1:])
    dist.all_to_all_single(ids, idx[order], receive_rows, send_rows, group=group)
    dist.all_to_all_single(rows, value[order], receive_rows, send_rows, group=group)
    return ids, rows
