"""Sort a vector that is spread over the ranks, by sample sort.

Distributed databases and particle codes sort data that no single memory holds. Each rank holds any number of values
(none at all on some ranks, duplicates everywhere). Afterwards the ranks hold, in rank order, consecutive slices of the
sorted whole whose lengths differ by at most one. The values travel twice: once to the rank that sorts their range, once
to even out the lengths.
"""

import torch
import torch.distributed as dist


def all_gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """(m,) of every rank -> (W, m)."""
    gathered = torch.empty(dist.get_world_size(group) * x.shape[0], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(gathered, x, group=group)
    return gathered.view(-1, x.shape[0])


def exchange(values: torch.Tensor, send_counts: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Send consecutive runs of ``values`` to ranks 0, 1, ...; returns what arrived, in source order."""
    send = torch.tensor(send_counts, dtype=torch.int64, device=values.device)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    receive_counts = receive.tolist()
    received = torch.empty(sum(receive_counts), dtype=values.dtype, device=values.device)
    dist.all_to_all_single(received, values, receive_counts, send_counts, group=group)
    return received


def choose_splitters(
    shard: torch.Tensor, sort_rank: int, num_active: int, group: dist.ProcessGroup | None
) -> list[tuple[float, int, int]]:
    """num_active - 1 splitters (value, sort rank, position) at even distances among regular samples of all shards.

    The triple orders equal values by where they lie, so that heavy duplicates do not unbalance the buckets.
    """
    size, device = shard.shape[0], shard.device
    index = torch.arange(num_active, device=device)
    positions = (index + 1) * size // num_active - 1 if size > num_active else index[:size]
    values = torch.full((num_active,), torch.inf, dtype=shard.dtype, device=device)  # filler where there is no sample
    ranks = torch.full((num_active,), -1, dtype=torch.int64, device=device)
    places = torch.full((num_active,), -1, dtype=torch.int64, device=device)
    values[: positions.shape[0]] = shard[positions]
    ranks[: positions.shape[0]] = sort_rank
    places[: positions.shape[0]] = positions

    columns = [all_gather(x, group).flatten().tolist() for x in (values, ranks, places)]
    samples = sorted(sample for sample in zip(*columns, strict=True) if sample[1] >= 0)
    count = len(samples)
    return [samples[max(0, min((j + 1) * count // num_active - 1, count - 1))] for j in range(num_active - 1)]


def bucket_ends(shard: torch.Tensor, sort_rank: int, splitters: list[tuple[float, int, int]]) -> list[int]:
    """Where each splitter cuts the sorted shard; elements before it in the order (value, sort rank, position) stay left."""
    ends: list[int] = []
    for value, rank, position in splitters:
        end = position + 1
        if sort_rank != rank:
            probe = torch.tensor([value], dtype=shard.dtype, device=shard.device)
            end = int(torch.searchsorted(shard, probe, right=sort_rank < rank))
        ends.append(min(max([end, *ends[-1:]]), shard.shape[0]))
    return [*ends, shard.shape[0]]


def solution(local_shard: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return this rank's slice of all values sorted ascending.

    local_shard: (n_r,) finite floating values, n_r may differ by rank and be 0. With N the sum of all n_r, rank r returns
    N // W values, the first N mod W ranks one more; concatenated in rank order the slices are the sorted whole.
    """
    world_size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    device = local_shard.device
    shard = local_shard.sort().values

    sizes = all_gather(torch.tensor([shard.shape[0]], dtype=torch.int64, device=device), group).flatten().tolist()
    active = [r for r in range(world_size) if sizes[r] > 0]
    if not active:
        return torch.empty_like(local_shard)
    sort_rank = active.index(rank) if rank in active else -1

    # Cut the shard at the splitters and send bucket j to the j-th rank that has data.
    splitters = choose_splitters(shard, sort_rank, len(active), group)
    ends = bucket_ends(shard, sort_rank, splitters)
    send_counts = [0] * world_size
    for destination, start, end in zip(active, [0, *ends[:-1]], ends, strict=True):
        send_counts[destination] = end - start
    merged = exchange(shard, send_counts, group).sort().values

    # The merged buckets are the sorted whole in rank order: move every element to the slice where it belongs.
    merged_sizes = all_gather(torch.tensor([merged.shape[0]], dtype=torch.int64, device=device), group).flatten().tolist()
    first = sum(merged_sizes[:rank])
    base, extra = divmod(sum(sizes), world_size)
    slice_starts = [r * base + min(r, extra) for r in range(world_size + 1)]
    send_counts = []
    for destination in range(world_size):
        start = max(first, slice_starts[destination])
        end = min(first + merged.shape[0], slice_starts[destination + 1])
        send_counts.append(max(0, end - start))
    return exchange(merged, send_counts, group)
