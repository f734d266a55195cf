"""What a wrong answer looks like: which simple mistake, made on right data, gives exactly these wrong values.

Every mistake that is known is a *hypothesis*: a tensor that a candidate with that mistake would have returned. The hypothesis that
accounts for the wrong elements names the mistake; where one accounts for a part only, the next is sought for the rest. All of this
happens in trusted ranks, which hold what each rank should have got; nothing but the name and its parameters leaves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from pkb.evaluate import addends
from pkb.evaluate.scene import SLACK, Hypothesis, Scene, fits, near, neighbours, rounded, wide

#: Share of the wrong elements that a hypothesis must account for to be reported, and how many are reported.
LEAST_SHARE = 0.2
#: From this share on one hypothesis explains all; below it, explanations of the whole answer come first.
FULL_SHARE = 0.9
MOST_FINDINGS = 3
#: Of fewer elements chance is not told apart.
FEW = 64
#: Above this many wrong elements a regular sample of them is looked at.
SAMPLE = 1 << 16
#: A relative error (RMS of the difference over RMS of what is expected) that rounding could explain.
ROUNDING = 0.05
#: Values this many times larger than any that is expected are memory read before it was written.
GARBAGE = 1e4


def findings(scene: Scene) -> list[dict[str, Any]]:
    """What accounts for the wrong elements, each with its ``kind``, ``share`` of them and parameters; most telling first."""
    where = wrong_elements(scene).nonzero().reshape(-1)
    if not where.numel():
        return []
    if where.numel() > SAMPLE:
        where = where[:: where.numel() // SAMPLE + 1]
    got, expected, allowed = wide(scene.got)[where], wide(scene.expected)[where], wide(scene.allowed)[where] * SLACK
    left, found = _foreign(scene, where, got)
    tried = []
    for hypothesis in _hypotheses(scene, where):
        values = hypothesis.values[where]
        if near(values, expected, allowed).double().mean() >= 0.5:  # it is the right answer under another name
            continue
        matching = near(values, got, rounded(allowed, values, scene))
        if not _by_chance(matching, values, got, allowed):
            tried.append((matching, hypothesis.about))
    while len(found) < MOST_FINDINGS and left.any():
        counts = [int((left & matching).sum()) for matching, _ in tried]
        most = max(counts, default=0)
        kind = tried[counts.index(most)][1]["kind"] if most else ""  # of equals the first
        if not found and (most < FULL_SHARE * where.numel() or kind in ("other rank", "order")) and (whole := _blocks(scene)):
            return [whole]
        if most <= LEAST_SHARE * where.numel():
            break
        matching, about = tried[counts.index(most)]
        _add(found, {**about, "share": _share(left & matching, where)})
        left &= ~matching
    if not found and (whole := _rounding(scene) or _disorder(scene)):
        return [whole]
    return found


def _by_chance(matching: torch.Tensor, values: torch.Tensor, got: torch.Tensor, allowed: torch.Tensor) -> bool:
    """Whether so many elements match as would if the values stood elsewhere: small integers, and the like, often do."""
    if values.numel() < FEW or values.unique().numel() < FEW // 8:
        return False
    chance = float(near(values.roll(values.numel() // 3 + 1), got, allowed).double().mean())
    return float(matching.double().mean()) - chance < LEAST_SHARE * (1 - chance)


def _add(found: list[dict[str, Any]], finding: dict[str, Any]) -> None:
    """Put a finding to the others; one that another set of ranks has too becomes part of that."""
    bare = {k: v for k, v in finding.items() if k not in ("sources", "share")}
    alike = next(
        (f for f in found if "sources" in finding and bare == {k: v for k, v in f.items() if k not in ("sources", "share")}),
        None,
    )
    if alike is None:
        found.append(finding)
        return
    alike["sources"] = sorted({*alike["sources"], *finding["sources"]})
    alike["share"] = round(alike["share"] + finding["share"], 3)


def _foreign(scene: Scene, where: torch.Tensor, got: torch.Tensor) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Values that no right data leads to: the wrong elements that are none of them, and the findings on those that are."""
    left = torch.ones_like(where, dtype=torch.bool)
    found: list[dict[str, Any]] = []
    if got.isnan().any():
        origin = nan_origin(scene.got)
        odd = got.isnan() | ((got == 0) if origin == "unwritten" else torch.zeros_like(left))
        found.append({"kind": "nan", "origin": origin, "share": _share(odd, where)})
        left = ~odd
    usual = wide(scene.expected).nan_to_num(0, 0, 0).abs().max()
    huge = (got.abs() > GARBAGE * usual) & (usual > 0) & scene.expected.is_floating_point()
    if huge.double().mean() > 0.02:
        found.append({"kind": "garbage", "share": _share(huge, where)})
        left &= ~huge & (got != 0)
    return left, found


def wrong_elements(scene: Scene) -> torch.Tensor:
    """Which elements (flat) are not what is expected."""
    return ~near(wide(scene.expected), wide(scene.got), wide(scene.allowed))


def location(scene: Scene) -> dict[str, Any]:
    """Where the wrong elements lie: their share, first and last index in every dimension, and what is special about that.

    tail: so many elements at the very end only. blocks: split into one block per rank along ``dim``, only these are wrong.
    """
    wrong, shape = wrong_elements(scene), list(scene.expected.shape)
    where = wrong.reshape(shape).nonzero()
    box = [[int(where[:, d].min()), int(where[:, d].max())] for d in range(len(shape))]
    found: dict[str, Any] = {"share": round(float(wrong.double().mean()), 4), "shape": shape, "box": box}
    behind = wrong.numel() - int(wrong.nonzero()[0])
    if behind <= min(64, wrong.numel() // 8):
        found["tail"] = behind
    W = scene.world_size
    for d, extent in enumerate(shape):
        if extent % W or not extent:
            continue
        by_block = wrong.reshape(shape).movedim(d, 0).reshape(W, -1).any(1).tolist()
        if not all(by_block):
            others = [r != scene.rank for r in range(W)]
            found["blocks"] = {"dim": d, "wrong": [i for i in range(W) if by_block[i]], "own_right": by_block == others}
            break
    return found


def nan_origin(got: torch.Tensor) -> str:
    """Where NaNs come from: "unwritten" memory, "filled" (the harness's own bits, in whatever way they got here), or "computed".

    Memory is filled with float32 NaNs before each call: elements of two bytes then alternate between zero and NaN. Arithmetic on
    x86 and on GPUs makes NaNs of other bits, which only elements of four bytes keep; "unknown" where the bits do not tell.
    """
    flat = got.detach().contiguous().reshape(-1)
    nan = flat.isnan()
    if flat.element_size() == 2:
        odd = torch.arange(flat.numel()) % 2 == 1
        if bool(nan[odd].any()) and not bool(nan[~odd].any()) and bool((flat[~odd][nan[odd][: int((~odd).sum())]] == 0).all()):
            return "unwritten"
        return "unknown"
    if flat.dtype == torch.float32:
        return "filled" if bool((flat.view(torch.int32)[nan] == 0x7FC00000).double().mean() > 0.5) else "computed"
    return "unknown"


def _share(mask: torch.Tensor, where: torch.Tensor) -> float:
    return round(int(mask.sum()) / where.numel(), 3)


def _hypotheses(scene: Scene, where: torch.Tensor) -> Iterator[Hypothesis]:
    """In order of precedence: of two that account for as many elements the first is taken."""
    size = wide(scene.expected).numel()
    if (scene.expected == 0).double().mean() < 0.1:  # else a zero says little
        yield Hypothesis(torch.zeros(size, dtype=torch.float64), {"kind": "zeros"})
    yield from _unexchanged(scene)
    yield from _factors(scene)
    yield from addends.hypotheses(scene, where)
    yield from _other_calls(scene, size)
    yield from _other_ranks(scene)
    yield from _layouts(scene)
    yield from (Hypothesis(wide(x), about) for about, x in scene.mistaken if fits(x, scene))
    yield from _any_factor(scene)


def _unexchanged(scene: Scene) -> Iterator[Hypothesis]:
    """Nothing came from the peers."""
    for name, tensor in scene.now.inputs[scene.rank]:
        if fits(tensor, scene):
            yield Hypothesis(wide(tensor), {"kind": "local", "of": f"its own input `{name}`"})
        elif tensor.numel() and scene.expected.numel() == scene.world_size * tensor.numel():
            yield Hypothesis(
                wide(tensor).repeat(scene.world_size), {"kind": "local", "of": f"its own input `{name}`, repeated"}
            )
    alone = scene.now.alone[scene.rank]
    if fits(alone, scene):
        yield Hypothesis(wide(alone), {"kind": "local", "of": "what the reference computes when nothing is exchanged"})


def _other_ranks(scene: Scene) -> Iterator[Hypothesis]:
    """The right thing for somebody else, or somebody else's input."""
    for r in range(scene.world_size):
        if r == scene.rank:
            continue
        theirs = scene.now.expected[r]
        if fits(theirs, scene):
            yield Hypothesis(wide(theirs), {"kind": "other rank", "sources": [r], "of": "the output"})
        for name, tensor in scene.now.inputs[r]:
            if fits(tensor, scene):
                yield Hypothesis(wide(tensor), {"kind": "other rank", "sources": [r], "of": f"the input `{name}`"})


def _factors(scene: Scene) -> Iterator[Hypothesis]:
    """A missing or doubled average, or a sign."""
    W, expected = scene.world_size, wide(scene.expected)
    factors = {float(W): f"{W}", 1 / W: f"1/{W}", float(W * W): f"{W * W}", 1 / W**2: f"1/{W * W}", -1.0: "-1"}
    for factor, text in factors.items():
        yield Hypothesis(expected * factor, {"kind": "factor", "factor": text, "world_size": W})


def _any_factor(scene: Scene) -> Iterator[Hypothesis]:
    """Whatever constant most of the answer is off by."""
    expected, got = wide(scene.expected), wide(scene.got)
    usable = got.isfinite() & expected.isfinite() & (expected != 0)
    if usable.sum() < FEW // 8:
        return
    ratios = got[usable] / expected[usable]
    typical = float(ratios.median())
    if abs(typical) > 1e-6 and ((ratios - typical).abs() < 0.02 * abs(typical)).double().mean() > 0.5:
        yield Hypothesis(expected * typical, {"kind": "factor", "factor": f"{typical:.4g}", "world_size": scene.world_size})


def _other_calls(scene: Scene, size: int) -> Iterator[Hypothesis]:
    """The answer, or a peer's data, of a call before or after: the same places in memory, whatever the shapes were."""
    for about, known in neighbours(scene):
        own = known.expected[scene.rank]
        if own is not None:
            yield Hypothesis(_padded(wide(own), size), about)
        for r, inputs in enumerate(known.inputs):
            for _, tensor in inputs:
                if fits(tensor, scene):
                    yield Hypothesis(wide(tensor), {**about, "sources": [r]})


def _padded(flat: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(flat[:size], (0, max(0, size - flat.numel())), value=math.inf)


def _layouts(scene: Scene) -> Iterator[Hypothesis]:
    """The right values in the order of another layout."""
    expected, W = scene.expected, scene.world_size
    for a, b in itertools.combinations(range(expected.dim()), 2):
        if min(expected.shape[a], expected.shape[b]) > 1:
            yield Hypothesis(wide(expected.transpose(a, b)), {"kind": "transposed", "dims": [a, b]})
    if expected.numel() % W == 0 and expected.numel() > W:
        views = ((W, -1), (-1, W))
        for view in views:
            yield Hypothesis(wide(expected.reshape(view).t()), {"kind": "interleaved", "by": W, "rank_major": view == views[0]})
    for d in range(expected.dim()):
        if expected.shape[d] > W:  # with one slice per rank it is the order of the ranks that is wrong
            yield Hypothesis(wide(expected.flip(d)), {"kind": "reversed", "dim": d})


def _blocks(scene: Scene) -> dict[str, Any] | None:
    """With one block per rank along a dimension: where the content of each wrong block comes from."""
    W, expected, got = scene.world_size, scene.expected, scene.got
    for d in range(expected.dim()):
        if expected.shape[d] % W or not expected.shape[d]:
            continue
        size = expected.shape[d] // W
        allowed = scene.allowed.expand_as(expected)
        sources = []
        for i in range(W):
            piece = [x.narrow(d, i * size, size) for x in (got, expected, allowed)]
            sources.append((_source_of(piece[0], piece[2], d, scene), _source_of(piece[1], piece[2], d, scene)))
        moved: list[dict[str, Any]] = [
            {"block": i, "holds": h, "belongs": b} for i, (h, b) in enumerate(sources) if h and b and h != b
        ]
        wrong = [i for i in range(W) if not _same(*(x.narrow(d, i * size, size) for x in (expected, got, allowed)))]
        of_one = len({(m["holds"]["of"], m["holds"]["rank"]) for m in moved}) == 1 and all(
            m["holds"].get("block") == m["block"] for m in moved
        )
        if moved and len(moved) == len(wrong) and not of_one:  # else it is simply another rank's output
            return {"kind": "blocks", "dim": d, "moved": moved, "share": 1.0}
    return None


def _source_of(piece: torch.Tensor, allowed: torch.Tensor, dim: int, scene: Scene) -> dict[str, Any] | None:
    """Which block of which rank's input or output this is; this rank's own output only says which block."""
    W = scene.world_size
    places: list[tuple[dict[str, Any], torch.Tensor | None]] = []
    for r, inputs in enumerate(scene.now.inputs):
        places += [({"of": f"input `{name}`", "rank": r}, tensor) for name, tensor in inputs]
    places += [({"of": "output", "rank": r}, scene.now.expected[r]) for r in (scene.rank, *range(W))]
    for about, tensor in places:
        if tensor is None:
            continue
        if tensor.numel() == piece.numel() and _same(tensor, piece, allowed):
            return about
        if tensor.dim() == piece.dim() and tensor.shape[dim] == W * piece.shape[dim] and tensor.numel() == W * piece.numel():
            for j, block in enumerate(tensor.chunk(W, dim)):
                if block.shape == piece.shape and _same(block, piece, allowed):
                    return {**about, "block": j}
    return None


def _same(wanted: torch.Tensor, got: torch.Tensor, allowed: torch.Tensor) -> bool:
    return bool(near(wide(wanted), wide(got), wide(allowed) * SLACK).double().mean() > 0.99)


def _disorder(scene: Scene) -> dict[str, Any] | None:
    """All values are there to the bit, in an order that no simple layout explains; near values prove nothing, there are so many."""
    a, b = wide(scene.expected).sort().values, wide(scene.got).sort().values
    return {"kind": "reordered", "share": 1.0} if bool((a == b).double().mean() > 0.995) and a.unique().numel() > 8 else None


def _rounding(scene: Scene) -> dict[str, Any] | None:
    """Near, but not near enough: arithmetic in too narrow a type, or an approximation."""
    a, b = wide(scene.expected), wide(scene.got)
    wrong = wrong_elements(scene)
    if not (b[a.isfinite()]).isfinite().all() or not scene.expected.is_floating_point():
        return None
    relative = float((a - b)[wrong].square().mean().sqrt() / a[a.isfinite()].square().mean().sqrt().clamp(min=1e-300))
    return {"kind": "rounding", "relative": float(f"{relative:.2g}"), "share": 1.0} if relative < ROUNDING else None
