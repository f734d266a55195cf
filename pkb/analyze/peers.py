"""Where a candidate's Python touches peers' buffers as tensors: a small data flow over its syntax tree.

Names are followed through assignments, loops, containers, and functions of the file itself, without regard to scope or order:
what is wanted is a hint where data moves, not a proof.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Methods of a symmetric-memory handle that give a peer's buffer as a tensor.
_GETTERS = {"get_buffer", "get_remote_tensor", "get_remote_tensors", "get_peer_buffer"}
_ONE_BUFFER = {"get_buffer", "get_remote_tensor", "get_peer_buffer"}
#: Tensor methods that give another view of the same memory.
_VIEWS = {"view", "reshape", "narrow", "flatten", "select", "unsqueeze", "squeeze", "view_as", "chunk", "split", "unbind"}
#: Methods that move no data at all.
_IDLE = _GETTERS | _VIEWS | {"append", "data_ptr", "size", "numel", "stride", "storage_offset", "element_size", "is_contiguous"}
_COPIES = {"copy_", "clone", "contiguous"}
_LOOKUPS = {"get", "values", "items", "keys", "setdefault", "pop", "clear", "update", "extend"}
_BUILTINS = {
    "len",
    "range",
    "enumerate",
    "zip",
    "list",
    "tuple",
    "isinstance",
    "getattr",
    "hasattr",
    "print",
    "sorted",
    "reversed",
}
#: A name with one of these attributes is the handle, not a buffer.
_HANDLE = _GETTERS | {
    "barrier",
    "rank",
    "world_size",
    "put_signal",
    "wait_signal",
    "buffer_ptrs",
    "buffer_ptrs_dev",
    "signal_pad_ptrs",
}
_OWN_RANK = re.compile(r"(?:\w+\.)*(?:my_?|local_?|self_?)?rank(?:_id)?|(?:\w+\.)*get_rank\(.*\)|me", re.IGNORECASE)
#: Longer chains of assignments against the order of the file are not followed.
_ROUNDS = 20


@dataclass(frozen=True)
class Use:
    """One place where data of a peer's buffer is read or written. kind: "copy engine" or "load/store"."""

    kind: str
    line: int
    text: str


def peer_uses(source: str, most: int = 3) -> list[Use]:
    """The first ``most`` such places of each kind, in the order of their lines; empty when the source is no Python."""
    try:
        found = sorted(_Flow(ast.parse(source)).uses(), key=lambda use: use[1].lineno)
        kept = [use for kind in ("copy engine", "load/store") for use in [u for u in found if u[0] == kind][:most]]
        uses = [Use(kind, node.lineno, ast.get_source_segment(source, node) or "") for kind, node in kept]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(uses, key=lambda use: use.line)


class _Flow:
    """Which names, attributes and functions of a file stand for peers' buffers."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._functions = {n.name: n for n in self._nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        self._methods = {n for n, f in self._functions.items() if [a.arg for a in f.args.args][:1] == ["self"]}
        self._objects = {"self", *self._instances()}
        self._containers = set(self._literal_containers())
        self._single: set[str] = set()  # names bound to one buffer, not to a list of them
        self._varying = _varying_names(tree)
        attributes = [n for n in self._nodes if isinstance(n, ast.Attribute) and n.attr in _HANDLE]
        self._handles = {_label(n.value) for n in attributes} - {None}
        self._peers: set[str] = set()
        self._giving: set[str] = set()  # functions that return peers' buffers
        for _ in range(_ROUNDS):  # to a fixed point: views are taken of views
            before = len(self._peers) + len(self._giving)
            self._follow()
            if len(self._peers) + len(self._giving) == before:
                return

    def _instances(self) -> Iterator[str]:
        """Names bound to objects of the file's own classes."""
        classes = {n.name for n in self._nodes if isinstance(n, ast.ClassDef)}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) in classes:
                yield from (label for t in node.targets if (label := _label(t)) is not None)

    def _literal_containers(self) -> Iterator[str]:
        """Names bound to lists and dictionaries: what is put into them is kept, while what is put into a tensor is copied."""
        literal = ast.List | ast.Dict | ast.ListComp | ast.DictComp
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target, value in (pair for t in node.targets for pair in _pairs(t, node.value)):
                    made = isinstance(value, ast.Call) and _called(value) in ("dict", "list", "defaultdict", "OrderedDict")
                    repeated = isinstance(value, ast.BinOp) and isinstance(value.left, ast.List)
                    label = _label(target)
                    if label is not None and (made or repeated or isinstance(value, literal)):
                        yield label

    def _own_function(self, call: ast.Call) -> str | None:
        """The file's own function that is called, if it is one: a method only on an object of the file's own classes."""
        name = _called(call)
        if name not in self._functions:
            return None
        if name in self._methods:
            return name if isinstance(call.func, ast.Attribute) and _label(call.func.value) in self._objects else None
        return name

    def _is_own_rank(self, node: ast.AST) -> bool:
        """Whether an index is this rank's own number; a parameter or loop variable called ``rank`` is any rank."""
        if isinstance(node, ast.Name) and node.id in self._varying.get(node, ()):
            return False
        return _OWN_RANK.fullmatch(ast.unparse(node)) is not None

    def _follow(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind(node.target, node.iter)
            elif isinstance(node, ast.Call):
                self._pass(node)
        for name, function in self._functions.items():
            returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
            if any(self._is_peer(value) for value in returned):
                self._giving.add(name)

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        for part, source in _pairs(target, value):
            label = _label(part)
            if label is None or label in self._handles or not self._is_peer(source):
                continue
            if isinstance(part, ast.Subscript) and label not in self._containers:
                continue  # a copy into a tensor
            self._peers.add(label)
            if not isinstance(part, ast.Subscript) and isinstance(source, ast.Call) and _called(source) in _ONE_BUFFER:
                self._single.add(label)

    def _pass(self, call: ast.Call) -> None:
        """Arguments become the parameters of the file's own functions; what is appended becomes the list."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
            self._bind(call.func.value, call.args[0])
        name = self._own_function(call)
        if name is not None:
            parameters = [a.arg for a in self._functions[name].args.args]
            if parameters[:1] == ["self"]:
                parameters = parameters[1:]
            for parameter, argument in zip(parameters, call.args, strict=False):
                self._bind(ast.Name(parameter), argument)

    def _is_peer(self, node: ast.AST) -> bool:
        """Whether an expression is a peer's buffer, a view of it, or a container of such."""
        if isinstance(node, ast.Name | ast.Attribute):
            return _label(node) in self._peers
        if isinstance(node, ast.Subscript):
            one = isinstance(node.value, ast.Call) or _label(node.value) in self._single
            return (one or not self._is_own_rank(node.slice)) and self._is_peer(node.value)
        if isinstance(node, ast.Starred):
            return self._is_peer(node.value)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return any(self._is_peer(e) for e in node.elts)
        if isinstance(node, ast.Dict):
            return any(self._is_peer(v) for v in node.values)
        if isinstance(node, ast.DictComp):
            return self._is_peer(node.value)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self._is_peer(node.elt)
        if isinstance(node, ast.IfExp):
            return self._is_peer(node.body) or self._is_peer(node.orelse)
        return isinstance(node, ast.Call) and self._gives_peer(node)

    def _gives_peer(self, call: ast.Call) -> bool:
        name = _called(call)
        if name in _GETTERS or self._own_function(call) in self._giving:
            return not (call.args and self._is_own_rank(call.args[0]))
        if isinstance(call.func, ast.Attribute) and name in _VIEWS | _LOOKUPS:
            return self._is_peer(call.func.value)
        return name in ("zip", "enumerate", "list", "tuple", "reversed") and any(self._is_peer(a) for a in call.args)

    def uses(self) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
        for node in self._nodes:
            kind = self._use(node)
            if kind and isinstance(node, ast.expr | ast.stmt):
                yield kind, node

    def _use(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.BinOp):
            return "load/store" if self._is_peer(node.left) or self._is_peer(node.right) else None
        if isinstance(node, ast.AugAssign):
            return "load/store" if self._is_peer(node.target) or self._is_peer(node.value) else None
        if isinstance(node, ast.Assign):
            return "copy engine" if any(self._is_write(t, node.value) for t in node.targets) else None
        return self._call(node) if isinstance(node, ast.Call) else None

    def _is_write(self, target: ast.expr, value: ast.expr) -> bool:
        """``a[i] = b`` between tensors copies; into a list or dictionary it only binds."""
        if not isinstance(target, ast.Subscript) or _label(target) in self._containers:
            return False
        return self._is_peer(value) or self._is_peer(target)

    def _call(self, call: ast.Call) -> str | None:
        name = _called(call)
        given = [*call.args, *(k.value for k in call.keywords)]
        on_peer = isinstance(call.func, ast.Attribute) and self._is_peer(call.func.value)
        if name in _IDLE | _LOOKUPS | _BUILTINS or self._own_function(call):
            return None
        if not on_peer and not any(self._is_peer(a) for a in given):
            return None
        return "copy engine" if name in _COPIES else "load/store"


def _varying_names(tree: ast.Module) -> dict[ast.AST, frozenset[str]]:
    """For every name in the file, the parameters and loop variables of the functions around it."""
    found: dict[ast.AST, frozenset[str]] = {}

    def visit(node: ast.AST, names: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            loops = [n.target for n in ast.walk(node) if isinstance(n, ast.For | ast.comprehension)]
            targets = [n.id for t in loops for n in ast.walk(t) if isinstance(n, ast.Name)]
            names = names | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)} | set(targets)
        if isinstance(node, ast.Name):
            found[node] = names
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(tree, frozenset())
    return found


def _label(node: ast.AST) -> str | None:
    """What an assignment binds: a name, an attribute (".name", whichever object's), or the container behind a subscript."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    return _label(node.value) if isinstance(node, ast.Subscript) else None


def _called(call: ast.Call) -> str:
    """The last part of the called name; empty for ``kernel[grid](...)``, which launches a kernel."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(target, value) of an assignment, tuple by tuple where both sides are tuples of one length."""
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
    values: list[ast.expr] = value.elts if same else [value] * len(target.elts)  # type: ignore[attr-defined, list-item]
    for part, source in zip(target.elts, values, strict=True):
        yield from _pairs(part, source)
