"""What crosses process borders arrives as it left, and bytes that are no tree are refused before they cost memory."""

import io
import json
import socket
import struct
import threading
import weakref
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb.evaluate import tensors, wire
from pkb.problem import GroupRef
from pkb.table import Table

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def travel(tree):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=wire.send_tree, args=(theirs, tree))
        sender.start()
        got = wire.receive_tree(ours, 1 << 30)
        sender.join()
    return got


def arrive(skeleton: bytes, payload: bytes):
    """What a receiver makes of two frames."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = [struct.pack("<Q", len(part)) + part for part in (skeleton, payload)]
        sender = threading.Thread(target=lambda: [theirs.sendall(f) for f in frames])
        sender.start()
        try:
            return wire.receive_tree(ours, 1 << 20)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            sender.join()


def payload_of(**tensors):
    return safetensors.torch.save(tensors)


def bits(x):
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype):
    noise = torch.randint(0, 2 if dtype is torch.bool else 256, (5, 16), dtype=torch.uint8)
    sent = torch.view_as_complex(torch.randn(5, 4, 2).to(torch.float32)).to(dtype) if dtype.is_complex else noise.view(dtype)
    got = travel(sent)
    assert got.dtype == dtype and got.shape == sent.shape
    assert torch.equal(bits(got), bits(sent)), "NaN payloads included"


@pytest.mark.parametrize(
    "leaf",
    [
        True,
        False,
        None,
        "",
        "text \u00e9\n",
        0,
        -(2**70),
        1.0,
        -0.0,
        1e-320,
        float("inf"),
        GroupRef((0, 2)),
        torch.Size([2, 0]),
        torch.bfloat16,
    ],
    ids=repr,
)
def test_every_plain_leaf_keeps_type_and_value(leaf):
    got = travel([leaf])[0]
    assert type(got) is type(leaf) and repr(got) == repr(leaf)


def test_nan_stays_nan():
    assert travel(float("nan")) != travel(float("nan"))


def test_containers_keep_kind_order_and_keys():
    tree = {"b": [1, (2.5, {3: None})], "a": SimpleNamespace(x=torch.ones(2), y=[])}
    got = travel(tree)
    assert list(got) == ["b", "a"] and got["b"] == [1, (2.5, {3: None})]
    assert isinstance(got["a"], SimpleNamespace) and torch.equal(got["a"].x, torch.ones(2)) and got["a"].y == []


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_arrive_as_linear_layers(bias):
    sent = torch.nn.Linear(3, 5, bias=bias)
    got = travel(sent)
    assert isinstance(got, torch.nn.Linear) and (got.in_features, got.out_features) == (3, 5)
    assert torch.equal(got.weight, sent.weight) and (got.bias is None) == (not bias)


def test_tables_arrive_as_what_describes_them():
    sent = Table(9, torch.tensor([8, 2]), torch.randn(2, 3).to(torch.bfloat16))
    got = travel([sent])[0]
    assert isinstance(got, Table) and got.shape == (9, 3)
    assert torch.equal(got.tensor(), sent.tensor())


def test_sparse_tensors_arrive_coalesced_and_equal():
    sent = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 3.0], (2, 3), check_invariants=True)
    got = travel(sent)
    assert got.is_sparse and got.is_coalesced() and torch.equal(got.to_dense(), sent.to_dense())


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(6, 4, 2),
        lambda x: x[0, 0, 0],
        lambda x: x[:0],
        lambda x: x.flatten()[:1].as_strided((1,), (0,)),
        lambda x: torch.empty(0, dtype=x.dtype).as_strided((0, 3), (0, 0)),
    ],
    ids=["permuted", "transposed", "strided", "expanded", "scalar", "empty", "one element, stride 0", "empty, stride 0"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_views_keep_values_and_dense_views_their_strides(view, dtype):
    sent = view(torch.randn(3, 4, 2).to(dtype))
    got = travel(sent)
    assert got.shape == sent.shape and torch.equal(got, sent)
    dense = sorted(zip(sent.stride(), sent.shape, strict=True))
    expected, covered = 1, True
    for stride, n in dense:
        covered &= stride == expected
        expected *= n
    if covered and sent.numel() > 1:
        assert got.stride() == sent.stride()


@pytest.mark.parametrize("lazy", [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.mH], ids=["conj", "neg", "adjoint"])
def test_lazily_conjugated_tensors_travel_by_value(lazy):
    sent = lazy(torch.randn(3, 4, dtype=torch.complex64))
    assert torch.equal(travel(sent), sent)


def test_requires_grad_travels_and_aliases_do_not():
    x = torch.ones(4, requires_grad=True)
    got = travel([x, x, x.detach()])
    assert [t.requires_grad for t in got] == [True, True, False]
    assert len({t.data_ptr() for t in got}) == 3, "each input has memory of its own"


def test_views_of_one_storage_travel_by_value():
    whole = torch.arange(8.0)
    sent = [whole[:4], whole[4:], whole[2:6], whole, whole.view(2, 4).t()]
    for got, was in zip(travel(sent), sent, strict=True):
        assert torch.equal(got, was)


def test_received_tensors_are_private_and_aligned():
    sent = [torch.ones(3, dtype=torch.uint8), torch.arange(5.0)]
    got = travel(sent)
    got[1].add_(1)
    assert torch.equal(sent[1], torch.arange(5.0))
    assert all(t.data_ptr() % 16 == 0 for t in got)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_complex], ids=str)
def test_the_format_is_that_of_the_safetensors_library(dtype):
    noise = {
        "a": torch.randint(0, 2, (3, 5)).to(dtype),
        "empty": torch.ones(0, 3).to(dtype),
        "scalar": torch.ones(()).to(dtype),
    }
    noise["large"] = torch.randint(0, 2, (1 << 17,)).to(dtype)
    head, length = tensors.size(noise)
    whole = b"".join(tensors.pieces(head, noise))
    assert len(whole) == length
    theirs = safetensors.torch.load(whole)
    stream = io.BytesIO(payload_of(**noise))
    ours = tensors.receive(stream.readinto, len(stream.getbuffer()), 1 << 20)
    for name, x in noise.items():
        for y in (theirs[name], ours[name]):
            assert y.dtype == dtype and y.shape == x.shape and torch.equal(bits(y[None]), bits(x[None]))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_any_plain_tree_arrives_equal(tree):
    assert repr(travel(tree)) == repr(tree)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=4), st.permutations(range(4)), st.sampled_from(DTYPES[:4] + DTYPES[8:13]))
def test_any_dense_tensor_arrives_equal(shape, order, dtype):
    sent = torch.randint(0, 100, shape).to(dtype).permute([d for d in order if d < len(shape)])
    got = travel(sent)
    assert torch.equal(got, sent) and got.shape == sent.shape


# -- what is not a tree ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=80))
def test_arbitrary_bytes_never_do_worse_than_a_wire_error(skeleton, payload):
    with pytest.raises(wire.WireError):
        arrive(skeleton + b"\0", payload)


HEADERS = {
    "not an object": [],
    "no entry": {"0": 5},
    "unknown dtype": {"0": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}},
    "unhashable dtype": {"0": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}},
    "no shape": {"0": {"dtype": "F32", "data_offsets": [0, 4]}},
    "negative sizes": {"0": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
    "sizes that are no integers": {"0": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}},
    "truth as a size": {"0": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
    "a huge size beside none": {"0": {"dtype": "F32", "shape": [0, 1 << 70], "data_offsets": [0, 0]}},
    "huge sizes beside none": {"0": {"dtype": "F32", "shape": [0, 1 << 61, 1 << 61], "data_offsets": [0, 0]}},
    "too many dimensions": {"0": {"dtype": "F32", "shape": [1] * 5000, "data_offsets": [0, 4]}},
    "more than follows": {"0": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}},
    "less than follows": {"0": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}},
    "a gap": {"0": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}},
    "an overlap": {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "01"},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_that_lie_are_refused_before_memory_is_taken(header):
    text = json.dumps(header).encode()
    with pytest.raises(wire.WireError):
        arrive(b'{"t": "0"}', struct.pack("<Q", len(text)) + text + bytes(4))


@pytest.mark.parametrize("payload", [b"", bytes(7), struct.pack("<Q", 1 << 63), struct.pack("<Q", 2) + b"{"], ids=len)
def test_payloads_without_a_whole_header_are_refused(payload):
    with pytest.raises(wire.WireError):
        arrive(b'{"t": "0"}', payload)


@pytest.mark.parametrize(
    "skeleton",
    [
        "[]",
        "{}",
        '"t"',
        '{"t": "7"}',
        '{"pickle": "gASV"}',
        '{"i": "x"}',
        '{"f": "0x1p99999"}',
        '{"dtype": "no_such"}',
        '{"size": ["a"]}',
        '{"t": "0", "order": 5}',
        '{"v": [1]}',
        '{"dtype": "load"}',
        '{"list": [{"t": "0"}, {"t": "0"}]}',
        '{"t": "0", "as": "complex64"}',
        '{"sparse": [{"t": "0"}, {"t": "0"}], "shape": [1, 1]}',
        '{"linear": [{"v": 1}, {"v": null}]}',
        '{"table": [3, {"t": "0"}, {"t": "0"}]}',
        '{"table": [3, {"v": 1}, {"t": "0"}]}',
        '{"table": 3}',
        '{"dict": [[{"list": []}, {"v": 1}]]}',
        '{"list": [' * 3000,
        '{"list":[' * 50_000 + '{"v":null}' + "]}" * 50_000,
        '{"i": "' + "9" * 5000 + '"}',
    ],
    ids=lambda s: s[:24],
)
def test_malformed_skeletons_are_refused(skeleton):
    with pytest.raises(wire.WireError):
        arrive(skeleton.encode(), payload_of(**{"0": torch.ones(3)}))


def test_a_sparse_tensor_with_indices_out_of_range_is_refused():
    skeleton, parts = wire.encode(torch.sparse_coo_tensor([[5]], [1.0], (6,), check_invariants=True))
    lie = json.loads(skeleton)
    lie["shape"] = [2]
    with pytest.raises(wire.WireError):
        arrive(json.dumps(lie).encode(), payload_of(**parts))


@pytest.fixture
def link():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_declared_length_is_bounded_before_memory_is_taken(link):
    ours, theirs = link
    theirs.sendall(struct.pack("<Q", 1 << 60))
    with pytest.raises(wire.WireError, match=f"{1 << 60} bytes where at most 1000"):
        wire.receive_bytes(ours, 1000)


@pytest.mark.parametrize(
    "sent", [b"", b"\1\0", struct.pack("<Q", 10) + b"123"], ids=["nothing", "half a length", "half a body"]
)
def test_a_connection_that_ends_early_is_a_wire_error(link, sent):
    ours, theirs = link
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(wire.WireError, match="closed"):
        wire.receive_message(ours)


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b"\xff\xfe", b"[" * 100_000], ids=["text", "list", "not UTF-8", "deep"])
def test_messages_that_are_no_objects_are_wire_errors(link, body):
    ours, theirs = link
    wire.send_bytes(theirs, body)
    with pytest.raises(wire.WireError):
        wire.receive_message(ours)


def test_large_trees_pass_through_small_socket_buffers(link):
    ours, theirs = link
    sent = {"x": torch.randn(1 << 20), "messages": ["a"]}
    sender = threading.Thread(target=wire.send_tree, args=(theirs, sent))
    sender.start()
    got = wire.receive_tree(ours, 1 << 30)
    sender.join()
    assert torch.equal(got["x"], sent["x"]) and got["messages"] == ["a"]


def test_tensors_of_another_device_are_on_the_host_one_at_a_time(link, monkeypatch):
    """On their way to it and from it; all of them together can be more than a group may hold there."""
    alive, most, bytes_of = [], [], tensors._bytes

    def noting(x):
        alive.append(weakref.ref(x))
        most.append(sum(ref() is not None for ref in alive))
        return bytes_of(x)

    sent = [torch.full((n, 1 << 16), float(n)).t() for n in (1, 2, 3)]  # permuted, of which the host gets a copy
    sent = [x[::2] for x in sent]
    monkeypatch.setattr(tensors, "_bytes", noting)
    ours, theirs = link
    sender = threading.Thread(target=wire.send_tree, args=(theirs, sent))
    sender.start()
    payload = wire.receive_bytes(ours, 1 << 20), wire.receive_bytes(ours, 1 << 30)
    sender.join()
    assert most == [1, 1, 1]
    alive.clear()
    stream = io.BytesIO(payload[1])
    got = tensors.receive(stream.readinto, len(payload[1]), 1 << 20, "meta")
    assert [x.device.type for x in got.values()] == ["meta"] * 3 and most == [1] * 6


def test_a_leaf_without_a_form_on_the_wire_is_a_type_error():
    with pytest.raises(TypeError, match="a object cannot cross"):
        wire.encode([object()])
