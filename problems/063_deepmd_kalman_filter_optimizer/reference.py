"""One step of a layer-wise (block-diagonal) extended Kalman filter as an optimiser, blocks distributed over the ranks.

Each rank holds some blocks of the parameters, with the covariance of each block and the gradient (measurement Jacobian) of the
predicted quantity. The innovation's variance sums over the blocks of all ranks; each rank then updates its own blocks and
covariances, and all ranks collect the updated parameters of all blocks. This is how DeePMD-kit trains neural network
potentials with the layer-wise Kalman filter (LKF).
"""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    H: list[torch.Tensor],
    error: torch.Tensor,
    weights: list[torch.Tensor],
    P: list[torch.Tensor],
    kalman_lambda: float,
    kalman_nue: float = 0.9987,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Return (all updated weights, local updated covariances, next memory factor).

    H, weights: lists of (b_i, 1), P: list of (b_i, b_i), one entry per local block; the number of blocks and their lengths may
    differ by rank. error: 0-dim innovation. kalman_lambda: memory factor. kalman_nue: its rate.
    The entries of the lists ``weights`` and ``P`` are replaced by the updated blocks of this rank (new tensors); the returned
    covariances are the list ``P`` itself. The first result has the blocks of all ranks, in order of rank and block, each (b, 1),
    equal on all ranks. Everything is in the dtype of weights[0].
    """
    world = dist.get_world_size()
    dtype, device = weights[0].dtype, weights[0].device
    lam = torch.tensor(kalman_lambda, dtype=dtype, device=device)
    error = error.to(dtype)

    # Variance of the innovation, over the blocks of all ranks.
    total = torch.zeros(1, 1, dtype=dtype, device=device)
    for h, p in zip(H, P, strict=True):
        total += lam + (h.t() @ p) @ h
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    A = 1 / total

    # Update the local blocks.
    for i, h in enumerate(H):
        K = P[i] @ h
        weights[i] = weights[i] + (A * error) * K
        P[i] = (1 / lam) * (P[i] - A * (K @ K.t()))

    # Collect the updated weights. Ranks hold different numbers of elements: pad to the longest, cut after the exchange.
    lengths: list[list[int]] = [[] for _ in range(world)]
    dist.all_gather_object(lengths, [w.numel() for w in weights])
    longest = max(sum(blocks) for blocks in lengths)
    padded = torch.zeros(longest, dtype=torch.float64, device=device)
    padded[: sum(lengths[dist.get_rank()])] = torch.cat([w.flatten() for w in weights])
    gathered = torch.empty(world * longest, dtype=torch.float64, device=device)
    dist.all_gather_into_tensor(gathered, padded)

    all_weights = [
        block.reshape(-1, 1).to(dtype)
        for blocks, row in zip(lengths, gathered.view(world, longest), strict=True)
        for block in row[: sum(blocks)].split(blocks)
    ]

    next_lambda = kalman_nue * lam + 1 - kalman_nue
    return all_weights, P, next_lambda
