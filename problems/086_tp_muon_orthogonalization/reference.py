"""Newton-Schulz orthogonalisation of a matrix sharded over tensor-parallel ranks.

The Muon optimiser (Megatron-LM, NVIDIA emerging-optimizers) replaces a momentum matrix M = U S V^T by nearly U V^T: a
few odd matrix polynomials X <- a X + (b G + c G^2) X with G = X X^T push all singular values towards 1. Each rank holds a
shard of the matrix, cut along one axis; the Gram matrix of the other axis is a sum over the ranks. Every rank returns its
shard of the orthogonalised matrix.
"""

import torch
import torch.distributed as dist

# Coefficients (a, b, c) of successive steps; a set is used cyclically.
COEFFICIENTS = {
    "simple": [(3.4445, -4.7750, 2.0315)],
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": [
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4647, 0.5074),
        (2.2779, -1.6447, 0.4162),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ],
    "aol": [
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ],
}


def solution(
    x: torch.Tensor,
    steps: int = 5,
    coefficient_type: str = "quintic",
    partition_dim: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return this rank's shard of the orthogonalised matrix, in the shape and dtype of x.

    x: (R, c) if partition_dim is 1, (c, R) if it is 0: the sharded axis has W * c entries in all. steps: a multiple of the
    number of triples of the coefficient set. All arithmetic is in (at least) float32, without TF32.
    """
    assert x.dim() == 2, "x must be a matrix"
    assert coefficient_type in COEFFICIENTS, f"unknown coefficients {coefficient_type}"
    triples = COEFFICIENTS[coefficient_type]
    assert steps % len(triples) == 0, f"steps must be a multiple of {len(triples)}"
    assert partition_dim in (0, 1), "partition_dim must be 0 or 1"

    shard = x.t() if partition_dim == 0 else x
    shard = shard.to(torch.promote_types(x.dtype, torch.float32))

    # Scale the whole matrix to Frobenius norm 1, so that no singular value exceeds 1.
    squares = shard.square().sum()
    dist.all_reduce(squares, group=group)
    shard = shard / squares.sqrt().clamp(min=1e-7)

    for step in range(steps):
        a, b, c = triples[step % len(triples)]
        gram = shard @ shard.t()
        dist.all_reduce(gram, group=group)
        update = b * gram + c * (gram @ gram)
        shard = a * shard + update @ shard

    out = shard.to(x.dtype)
    return (out.t() if partition_dim == 0 else out).contiguous()
