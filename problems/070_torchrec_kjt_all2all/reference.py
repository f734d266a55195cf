"""Redistribute keyed jagged features from the ranks that hold the samples to the ranks that own the features.

Recommendation models (TorchRec) read a batch of sparse features on every rank: for each of F keys and each local sample
one bag of ids of any length. Embedding tables are sharded by key, so before the lookup every bag has to travel to the
rank that owns its key. Each rank holds the bag lengths of all keys for its own samples (key-major), the ids of all bags
in the same order, and optionally one weight per id; the first key_splits[0] keys belong to rank 0, the next
key_splits[1] to rank 1, and so on. Every rank returns the bags of its own keys, of all samples of all ranks, key-major.
"""

import torch
import torch.distributed as dist


def start_exchange(send: torch.Tensor, receive_splits: list[int], send_splits: list[int], group):
    """Start an all-to-all of consecutive runs of a vector; returns (received, work to wait for)."""
    received = torch.empty(sum(receive_splits), dtype=send.dtype, device=send.device)
    work = dist.all_to_all_single(received, send.contiguous(), receive_splits, send_splits, group=group, async_op=True)
    return received, work


def to_key_major(received: torch.Tensor, segment_sizes: list[int], num_keys: int, source_order: list[int]) -> torch.Tensor:
    """Reorder segments that arrived as (source, key) into (key, source), with the sources in the given order."""
    if num_keys == 0:
        return received
    segments = torch.split(received, segment_sizes)
    return torch.cat([segments[source * num_keys + key] for key in range(num_keys) for source in source_order])


def solution(
    lengths: torch.Tensor,
    values: torch.Tensor,
    key_splits: list[int],
    batch_size: int,
    pg: dist.ProcessGroup | None = None,
    weights: torch.Tensor | None = None,
    stride_per_key: list[int] | None = None,
    stagger: int = 1,
) -> dict[str, torch.Tensor]:
    """Return this rank's keys of the whole batch.

    lengths: (sum of strides,) int64, key f's bags contiguous. values: (sum of lengths,) int64. key_splits: number of keys
    per rank. batch_size: bags per key on this rank, unless stride_per_key gives one number per key. weights: like values, or
    None. stagger: number of nodes; the bags of one key come from rank 0 of every node, then from rank 1 of every node, ....

    Returns a dict: "lengths" and "values" (and "weights") of the own keys, key-major, within a key by source rank; with one
    stride for all keys "stride" (0-d, bags per key) and "stride_per_rank" (W,); with a stride per key
    "stride_per_key_per_rank" (own keys, W), its columns in the staggered order.
    """
    world_size = dist.get_world_size(pg)
    own_keys = key_splits[dist.get_rank(pg)]
    device = lengths.device
    variable = stride_per_key is not None
    strides = list(stride_per_key) if stride_per_key is not None else [batch_size] * sum(key_splits)

    # How many lengths and values go to each destination.
    values_per_key = [int(bags.sum()) for bags in torch.split(lengths, strides)]
    length_splits, value_splits = [], []
    first = 0
    for count in key_splits:
        length_splits.append(sum(strides[first : first + count]))
        value_splits.append(sum(values_per_key[first : first + count]))
        first += count

    # Exchange of the split sizes: one row of integers per destination.
    columns = [length_splits, value_splits]
    if variable:
        columns.append(list(key_splits))
    if weights is not None:
        columns.append(value_splits)
    if not variable:
        columns.append([batch_size] * world_size)
    metadata = torch.tensor(columns, dtype=torch.int64, device=device).t().contiguous()
    received_metadata = torch.empty_like(metadata)
    dist.all_to_all_single(received_metadata, metadata, group=pg)
    received_columns = received_metadata.t().tolist()
    length_receive, value_receive = received_columns[0], received_columns[1]

    # Exchange of the data: all in flight together.
    received_lengths, lengths_work = start_exchange(lengths, length_receive, length_splits, pg)
    received_values, values_work = start_exchange(values, value_receive, value_splits, pg)
    in_flight = [lengths_work, values_work]
    if variable:
        stride_tensor = torch.tensor(strides, dtype=torch.int64, device=device)
        received_strides, strides_work = start_exchange(stride_tensor, received_columns[2], list(key_splits), pg)
        in_flight.append(strides_work)
    if weights is not None:
        received_weights, weights_work = start_exchange(weights, value_receive, value_splits, pg)
        in_flight.append(weights_work)
    for work in in_flight:
        work.wait()

    # Sizes of the segments that arrived, ordered by (source, own key).
    if variable:
        segment_strides = received_strides.tolist()
    else:
        batch_per_rank = received_columns[-1]
        segment_strides = [batch for batch in batch_per_rank for _ in range(own_keys)]
    segment_values = [int(bags.sum()) for bags in torch.split(received_lengths, segment_strides)]

    # Key-major order, sources in the staggered order.
    ranks_per_node = world_size // stagger
    source_order = [x + ranks_per_node * y for x in range(ranks_per_node) for y in range(stagger)]
    result = {
        "lengths": to_key_major(received_lengths, segment_strides, own_keys, source_order),
        "values": to_key_major(received_values, segment_values, own_keys, source_order),
    }
    if variable:
        by_key = received_strides.view(world_size, own_keys).t()
        result["stride_per_key_per_rank"] = by_key[:, source_order].contiguous()
    else:
        result["stride"] = torch.tensor(sum(batch_per_rank), dtype=torch.int64, device=device)
        result["stride_per_rank"] = torch.tensor(batch_per_rank, dtype=torch.int64, device=device)
    if weights is not None:
        result["weights"] = to_key_major(received_weights, segment_values, own_keys, source_order)
    return result
