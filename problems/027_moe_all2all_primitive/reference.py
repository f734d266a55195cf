"""All-to-all of unequal blocks of rows: the exchange primitive of expert parallelism.

Each rank holds rows sorted by the rank they go to, and knows how many go to and come from each peer; it sends every peer
its block and returns the received blocks in the order of their sources. Mixture-of-experts layers (Megatron-LM, VeOmni) run
it twice per layer, to carry tokens to their experts and back.
"""

import torch
import torch.distributed as dist


def solution(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the received rows, (sum of output_split_sizes, H), contiguous.

    local_tensor: (T, H), rows sorted by destination; need not be contiguous. input_split_sizes: rows for each of the W ranks,
    in sum T. output_split_sizes: rows from each rank; entry q here equals rank q's input entry for this rank. None means equal
    blocks. group: None means the world. With one rank the input is returned, made contiguous.
    """
    local_tensor = local_tensor.contiguous()
    if dist.get_world_size(group) == 1:
        return local_tensor

    if output_split_sizes is None:
        output = torch.empty_like(local_tensor)
    else:
        output = local_tensor.new_empty(sum(output_split_sizes), *local_tensor.shape[1:])
    dist.all_to_all_single(
        output,
        local_tensor,
        output_split_sizes=output_split_sizes,
        input_split_sizes=input_split_sizes,
        group=group,
    )
    return output
