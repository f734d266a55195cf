"""Problem 079: nearest neighbours over sharded features. Sizes, inputs, tolerance, cost."""

from typing import Any

from pkb.problem import Context, Cost, Problem, Shape

BANDS = (0.95, 0.75, 0.55)  # similarity of a family's query to the family's three classes
NOISE = 0.1  # norm of the noise added to every feature
NUM_LABELS = 1000


def num_neighbours(ctx: Context) -> int:
    """k by trial: nominal, 1, 10, nominal, all that a shard has."""
    return {"integers": 1, "wide": min(10, ctx.size.k), "edge": ctx.size.n}.get(ctx.variant, ctx.size.k)


def num_queries(ctx: Context) -> int:
    """Q of this rank: nominal, uneven in the wide and ragged trials, a single query on some ranks in the edge trial."""
    q, world_size = ctx.size.Q, ctx.world_size
    if ctx.variant in ("wide", "ragged"):
        return ctx.stream("queries").split(q * world_size, world_size, 1)[ctx.rank]
    return 1 if ctx.variant == "edge" and ctx.rank % 2 == 0 else q


def draw_members(ctx: Context, k: int, families: int) -> tuple[Any, Any]:
    """(family, class) of each of the n local training features.

    A family's first class lives on one rank, its second on the next; together they have fewer than k members, so that every
    query's neighbours come from both and from the third class, which is spread over all ranks.
    """
    import torch

    n, world_size = ctx.size.n, ctx.world_size
    draw = ctx.stream("members")
    first_home = (torch.arange(families) + draw.integer(0, world_size)) % world_size
    least, most = max(1, k // 8), max(1, 3 * k // 8)
    first_count = draw.integers(least, most + 1, families).tolist()
    second_count = draw.integers(least, most + 1, families).tolist()
    family, kind = [], []
    for f, home in enumerate(first_home.tolist()):
        for which, place, count in ((0, home, first_count[f]), (1, (home + 1) % world_size, second_count[f])):
            if place == ctx.rank:
                family += [f] * count
                kind += [which] * count
    rest = n - len(family)
    family += [(i + ctx.rank) % families for i in range(rest)]
    kind += [2] * rest
    order = ctx.own.permutation(n)
    to = {"dtype": torch.int64, "device": ctx.device}
    return torch.tensor(family, **to)[order], torch.tensor(kind, **to)[order]


def make_inputs(ctx: Context) -> tuple:
    """(test_features_rank, train_features_rank_T, train_labels_rank, max_k): unit features in well separated bands.

    Features belong to families of three classes at falling similarity to the family's queries. Equal or nearly equal
    similarities occur only inside one class, whose members share their label: the answer does not depend on how ties are
    broken or sums are rounded.
    """
    import torch

    s = ctx.size
    k = num_neighbours(ctx)
    families = max(1, min(s.D // 4, s.n * ctx.world_size // (2 * k)))
    gaussian = ctx.shared.randn(s.D, s.D, dtype=torch.float32)
    axes = torch.linalg.qr(gaussian).Q.T[: 4 * families].view(families, 4, s.D)
    cosine = torch.tensor(BANDS, device=ctx.device)[None, :, None]
    centres = cosine * axes[:, :1] + (1 - cosine.square()).sqrt() * axes[:, 1:]
    labels = ctx.shared.permutation(max(NUM_LABELS, 3 * families))[: 3 * families].view(families, 3)

    def feature(centre: Any) -> Any:
        noisy = centre + ctx.own.randn(*centre.shape, scale=NOISE * s.D**-0.5, dtype=torch.float32)
        return (noisy / noisy.norm(dim=1, keepdim=True)).to(ctx.dtype)

    family, kind = draw_members(ctx, k, families)
    train = feature(centres[family, kind])
    queries = feature(axes[ctx.own.integers(0, families, num_queries(ctx)), 0])
    return queries, train.T.contiguous(), labels[family, kind][None], k


def admissible(shape: Shape) -> str | None:
    """Every shard supplies k candidates; a family needs four dimensions."""
    s = shape.size
    if s.k > s.n:
        return f"k={s.k} exceeds the n={s.n} training features of a rank; lower size.k or raise size.n"
    if s.D < 16:
        return f"D={s.D} is too small to separate classes; raise size.D to 16 or more"
    return None


def cost(shape: Shape) -> Cost:
    """Queries to all ranks, k candidates per query and shard back (2 bytes of label); one product of all queries."""
    s, b, world_size = shape.size, shape.element_size, shape.world_size
    return Cost(
        sent_bytes=(world_size - 1) * (s.Q * s.D * b + s.Q * min(s.k, s.n) * (b + 2) / world_size),
        flops=2 * world_size * s.Q * s.D * s.n,
        memory_bytes=s.D * s.n * b + world_size * s.Q * s.D * b + s.Q * s.k * (b + 8),
        footprint_bytes=s.n * (s.D * b + 8) + s.Q * s.n * (b + 16) + 4 * world_size * s.Q * s.k * (b + 8),
    )


PROBLEM = Problem(
    title="k-nearest-neighbour search with the training features sharded over the ranks",
    category="data parallel",
    source="DINOv2 (k-NN evaluation)",
    sizes={
        "smoke": {"Q": 8, "n": 256, "D": 64, "k": 20},
        "default": {"Q": 32, "n": 2048, "D": 384, "k": 200},
        "production": {"Q": 256, "n": 160_000, "D": 1024, "k": 200},
    },
    make_inputs=make_inputs,
    cost=cost,
    admissible=admissible,
    deviations=(
        "features form classes at well separated similarities and ties occur only within a class, so that labels do not depend "
        "on the order of ties; the original's labels are mostly decided by unspecified ties",
        "a query's nearest classes live on one or two ranks, mostly others; the original's features have no structure",
        "the number of queries differs by rank and k by trial; labels are drawn by trial",
    ),
    tags=("broadcast", "gather", "top-k"),
)
