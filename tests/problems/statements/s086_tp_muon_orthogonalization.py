"""The polynomials applied to the singular values of the whole matrix, in float64."""

import torch

TRIPLES = {
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
    "aol": [(4.0098, -7.0585, 2.4635), (3.4585, -5.5479, 2.5959), (2.7573, -3.2939, 1.4254), (2.7215, -3.0494, 1.3169)],
}


def statement(ranks):
    _, steps, coefficients, dim = ranks[0]
    whole = torch.cat([r[0] for r in ranks], dim=dim).double()
    u, sigma, vt = torch.linalg.svd(whole, full_matrices=False)
    sigma = sigma / sigma.norm()
    for step in range(steps):
        a, b, c = TRIPLES[coefficients][step % len(TRIPLES[coefficients])]
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return list(((u * sigma) @ vt).chunk(len(ranks), dim=dim))
