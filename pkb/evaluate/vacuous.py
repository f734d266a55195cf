"""Answers that skip the work, made generically from any reference: what ``pkb audit`` tries on every problem.

Each is a function of one call that trusted ranks run in place of the reference. None reads the expected values to cheat; those that
are right somewhere (on one rank, in one call, for one shape) run the reference there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pkb import tree
from pkb.evaluate.collectives import Collective, intercept

#: Computing functions by kind, under the names that a torch function mode sees. Each kind is skipped alone, then all of them.
COMPUTE = {
    "products": "matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm linear einsum conv1d conv2d conv3d tensordot dot outer "
    "scaled_dot_product_attention",
    "normalisations": "softmax log_softmax logsumexp layer_norm rms_norm group_norm normalize vector_norm norm",
    "pointwise functions": "exp exp2 log log1p sigmoid logsigmoid silu relu gelu tanh softplus rsqrt sqrt square round",
    "transforms": "fft ifft rfft irfft fft2 ifft2 interpolate solve_triangular cumsum cumprod topk sort argsort",
    "reductions": "sum mean amax amin max min var prod cross_entropy mse_loss",
    "arithmetic": "mul mul_ __mul__ __rmul__ add add_ __add__ __radd__ sub sub_ __sub__ __rsub__ div div_ __truediv__ __rtruediv__ "
    "addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ pow __pow__ __iadd__ __imul__ __isub__ __itruediv__ neg __neg__",
}


@dataclass
class Call:
    """One call to be answered: ``inputs`` are its own copies; ``like`` is an output of the right structure with other values."""

    number: int  # 0 for the first call that this candidate sees
    inputs: list[Any]
    like: Any
    mutates: frozenset[int]
    rank: int
    world_size: int
    solve: Callable[..., Any]
    memory: dict[Any, Any]  # survives from call to call
    differs: bool = True  # whether the answer skips anything on this rank; a call that skips nothing does not count as tried

    def changed(self) -> list[torch.Tensor]:
        """Tensors of the inputs that the contract changes."""
        return tree.tensors([self.inputs[i] for i in sorted(self.mutates)])


@dataclass(frozen=True)
class Vacuous:
    """answer: call -> output (changing the call's inputs where the contract asks). precise: needs a dtype finer than bfloat16.

    lossy: does all the work in less precision than the dtype has, so that where the contract is one average over many values it
    cannot be told from an honest answer.
    """

    name: str
    answer: Callable[[Call], Any]
    precise: bool = False
    lossy: bool = False


def zeros(call: Call) -> Any:
    """Zeros of the right shape."""
    for t in call.changed():
        t.detach().zero_()
    return tree.map_leaves(lambda x: torch.zeros_like(x) if isinstance(x, torch.Tensor) else x, call.like)


def uninitialised(call: Call) -> Any:
    """Memory as the allocator hands it out; what was there before is noise."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.is_sparse:
            return x
        noise = torch.randint(0, 256, (max(1, x.nbytes),), dtype=torch.uint8)
        del noise
        return torch.empty_like(x)

    return tree.map_leaves(leaf, call.like)


def inputs_as(index: int | None) -> Callable[[Call], Any]:
    """Every output is a copy of one input tensor (the index-th, or the best-fitting one), repeated or cut to its shape."""

    def answer(call: Call) -> Any:
        given = [t for t in tree.tensors(call.inputs) if t.numel() and not t.is_sparse]
        call.differs = bool(given) and (index is None or index < len(given))
        if not call.differs:
            return zeros(call)

        def leaf(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.is_sparse:
                return x
            alike = [t for t in given if t.dtype == x.dtype and t.shape == x.shape] or [
                t for t in given if t.is_floating_point() == x.is_floating_point()
            ]
            return fitted((alike or given)[0] if index is None else given[index], x)

        return tree.map_leaves(leaf, call.like)

    return answer


def remembered(call: Call) -> Any:
    """The answer to the first call with inputs of these shapes, whatever the values are now."""
    key = shapes(call.inputs)
    call.differs = key in call.memory
    if call.differs:
        output, changed = call.memory[key]
        for t, value in zip(call.changed(), changed, strict=True):
            t.detach().copy_(value)
        return tree.clone(output)
    output = call.solve(*call.inputs)
    call.memory[key] = (tree.clone(output), [t.detach().clone() for t in call.changed()])
    return output


def only(right: Callable[[Call], bool]) -> Callable[[Call], Any]:
    """The reference where ``right``, zeros elsewhere; the collectives run on all ranks in either case."""

    def answer(call: Call) -> Any:
        before = [t.detach().clone() for t in call.changed()]
        output = call.solve(*call.inputs)
        call.differs = not right(call) and bool(tree.tensors(output) or before)
        if not call.differs:
            return output
        for t, was in zip(call.changed(), before, strict=True):
            t.detach().copy_(was)
        return tree.map_leaves(lambda x: torch.zeros_like(x) if isinstance(x, torch.Tensor) else x, output)

    return answer


def first_shape(call: Call) -> bool:
    """Whether the inputs have the shapes of the first call."""
    return call.memory.setdefault("shapes", shapes(call.inputs)) == shapes(call.inputs)


def without_peers(manner: str, metadata: bool) -> Callable[[Call], Any]:
    """The reference with every collective replaced by the local data.

    manner: what stands in for the peers' data: "copies" of this rank's, "zeros", or copies "scaled" by the world size where a
    sum is asked for (right when all ranks hold the same). metadata: collectives of integers are done.
    """

    def answer(call: Call) -> Any:
        seen = 0

        def stand_in(op: Collective) -> Any:
            nonlocal seen
            if metadata and not op.floating:
                return op.do()
            seen += 1
            return op.locally(manner)

        with intercept(stand_in):
            output = call.solve(*call.inputs)
        call.differs = seen > 0
        return output

    return answer


def stale(call: Call) -> Any:
    """What collectives deliver is what they delivered in the previous call: a missing barrier, or a buffer read too early."""
    before = call.memory.get("delivered", [])
    now: list[list[torch.Tensor]] = []
    call.differs = False

    def late(op: Collective) -> Any:
        op.do_and_wait()
        true = [t.detach().clone() for t in op.received]
        if len(now) < len(before):
            for t, was in zip(op.received, before[len(now)], strict=False):
                if t.shape == was.shape and t.dtype == was.dtype and t.is_floating_point():
                    call.differs = True
                    t.detach().copy_(was)
        now.append(true)
        return op.done()

    with intercept(late):
        output = call.solve(*call.inputs)
    call.memory["delivered"] = now
    return output


def eight_bits(call: Call) -> Any:
    """The reference with what collectives send rounded to 8-bit floats (scaled to each tensor's maximum)."""
    seen = 0

    def narrow(op: Collective) -> Any:
        nonlocal seen
        for t in op.sent:
            if t.is_floating_point() and t.element_size() > 1 and t.numel() > 1:  # its scale alone carries a single number
                was = t.detach().clone()
                scale = (was.abs().nan_to_num(0, 0, 0).amax().float() / 448).clamp(min=1e-30)
                t.detach().copy_((was.float() / scale).to(torch.float8_e4m3fn).float() * scale)
                seen += not torch.equal(was, t.detach())
        return op.do()

    with intercept(narrow, private=True):
        output = call.solve(*call.inputs)
    call.differs = seen > 0
    return output


def without_compute(kinds: tuple[str, ...], delivered: bool = False) -> Callable[[Call], Any]:
    """The reference with its collectives, but each computing function of these kinds handing its first operand through.

    delivered: the answer is what the last collective that fits delivered, with nothing computed afterwards either.
    """
    names = frozenset(n for kind in kinds for n in COMPUTE[kind].split())

    def answer(call: Call) -> Any:
        received: list[torch.Tensor] = []

        def note(op: Collective) -> Any:
            op.do_and_wait()
            received.extend(t.detach().clone() for t in op.received)
            return op.done()

        with intercept(note), _Skip(names) as skip:
            output = call.solve(*call.inputs)
        call.differs = skip.hits > 0
        if not delivered:
            return output
        given = [t for t in received if t.numel()]
        call.differs = call.differs and bool(given)
        if not given:
            return output

        def leaf(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.is_sparse:
                return x
            alike = [t for t in given if t.numel() == x.numel()] or [t for t in given if t.dtype == x.dtype]
            return fitted((alike or given)[-1], x)

        return tree.map_leaves(leaf, output)

    return answer


def three_digits(call: Call) -> Any:
    """The reference's answer rounded to three decimal digits, where the dtype has more."""
    output = call.solve(*call.inputs)
    fine = [t for t in [*tree.tensors(output), *call.changed()] if t.dtype in (torch.float32, torch.float64)]
    call.differs = False
    for t in fine:
        rounded = _digits(t.detach())
        call.differs = call.differs or not torch.equal(rounded, t.detach())
        t.detach().copy_(rounded)
    return output


def coarse_inputs(call: Call) -> Any:
    """The reference on inputs rounded to bfloat16, where they are finer."""
    fine = [t for t in tree.tensors(call.inputs) if t.dtype in (torch.float32, torch.float64) and not t.is_sparse]
    keep = [t.detach().clone() for t in fine]
    for t in fine:
        t.detach().copy_(t.detach().to(torch.bfloat16))
    call.differs = any(not torch.equal(t.detach(), was) for t, was in zip(fine, keep, strict=True))
    output = tree.clone(call.solve(*call.inputs))
    changed = {id(t) for t in call.changed()}
    for t, was in zip(fine, keep, strict=True):
        if id(t) not in changed:
            t.detach().copy_(was)
    return output


def catalogue() -> list[Vacuous]:
    """All of them, in the order in which they are tried."""
    kinds = tuple(COMPUTE)
    found = [
        Vacuous("zeros", zeros),
        Vacuous("uninitialised memory", uninitialised),
        *(Vacuous("its inputs" if i is None else f"its input {i}", inputs_as(i)) for i in (None, *range(8))),
        Vacuous("remembered from the first call", remembered),
        Vacuous("right on rank 0 only", only(lambda call: call.rank == 0)),
        Vacuous("right on all ranks but the last", only(lambda call: call.rank < call.world_size - 1)),
        Vacuous("right in the first call only", only(lambda call: call.number == 0)),
        Vacuous("right for the first shape only", only(first_shape)),
        *(
            Vacuous(f"local data only ({manner}{', metadata exchanged' if metadata else ''})", without_peers(manner, metadata))
            for manner in ("copies", "zeros", "scaled")
            for metadata in (False, True)
        ),
        Vacuous("peers' data of the previous call", stale),
        Vacuous("peers' data in 8 bits", eight_bits, lossy=True),
        *(Vacuous(f"without {kind}", without_compute((kind,))) for kind in kinds),
        Vacuous("without compute", without_compute(kinds)),
        Vacuous("what the collective delivered", without_compute(kinds, delivered=True)),
        Vacuous("three digits", three_digits, precise=True),
        Vacuous("inputs rounded to bfloat16", coarse_inputs, precise=True, lossy=True),
    ]
    return found


def fitted(source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The values of ``source`` in the shape and dtype of ``like``, repeated or cut."""
    flat = (source.to_dense() if source.is_sparse else source).reshape(-1)
    if flat.is_complex() and not like.is_complex():
        flat = flat.real
    if not like.numel() or not flat.numel():
        return torch.zeros_like(like)
    if flat.numel() < like.numel():
        flat = flat.repeat(-(-like.numel() // flat.numel()))
    return flat[: like.numel()].reshape(like.shape).to(like.dtype, copy=True)


def shapes(inputs: Any) -> tuple[Any, ...]:
    """The shapes of all tensors, in order."""
    return tuple(tuple(t.shape) for t in tree.tensors(inputs))


@dataclass
class _Skip(TorchFunctionMode):
    """Functions of these names run, so that shapes are right, and their values are replaced by their first operand's."""

    names: frozenset[str]
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        operand = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if name not in self.names or operand is None or not (operand.is_floating_point() or operand.is_complex()):
            return func(*args, **(kwargs or {}))
        if (name.endswith("_") and not name.startswith("__")) or name.startswith("__i"):
            self.hits += 1
            return operand
        result = func(*args, **(kwargs or {}))
        self.hits += 1
        return tree.map_leaves(lambda real: self._replaced(real, operand), result)

    def _replaced(self, real: Any, operand: torch.Tensor) -> Any:
        if not isinstance(real, torch.Tensor) or real.is_sparse or operand.is_sparse:
            return real
        if not (real.is_floating_point() or real.is_complex()):
            positions = torch.arange(real.shape[-1]) if real.dim() else torch.zeros((), dtype=torch.int64)
            return positions.expand(real.shape).to(real.dtype, copy=True)
        value = fitted(operand, real)
        return value + real * 0 if real.requires_grad else value


def _digits(x: torch.Tensor) -> torch.Tensor:
    """Rounded to three significant decimal digits."""
    wide = x.to(torch.float64)
    unit = 10.0 ** (torch.floor(torch.log10(wide.abs().clamp(min=1e-300))) - 2)
    return torch.where(torch.isfinite(wide) & (wide != 0), torch.round(wide / unit) * unit, wide).to(x.dtype)
